"""model.cast_lm_head_to_fp32: the head's matrix product in float32 for policy, reference and sampler; refused where it is tied."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from torch.nn import functional

from rlexp.batching.packer import pack
from rlexp.batching.terms import flatten
from rlexp.config.errors import UserError
from rlexp.config.model import LoraConfig, ModelConfig, PeftConfig
from rlexp.models.adapters import lora
from rlexp.models.companion import Companion
from rlexp.models.float32_head import use_float32_head
from rlexp.models.hub import load_folder
from rlexp.models.network import Network, row_tensors
from rlexp.models.save import save_policy
from rlexp.records.sample import Sample


def row_of(network: Network):
    ids = np.arange(5, 12)
    samples = [Sample("policy", 0, ids, np.arange(2, 6), ids[3:], np.zeros(4, np.float32))]
    terms = flatten(samples)
    return row_tensors(pack(samples, terms, [0], budget=100)[0][0].row, terms, network.device)


@pytest.mark.rows("GRPO-103")
@pytest.mark.parametrize(("dtype", "autocast"), [(torch.bfloat16, None), (torch.float32, torch.bfloat16)])
def test_the_head_computes_in_float32(dtype: torch.dtype, autocast: torch.dtype | None) -> None:
    loaded = tiny_model(dtype=dtype, spread=4.0)
    plain = Network(tiny_model(dtype=dtype, spread=4.0), autocast=autocast)
    use_float32_head(loaded.module)
    network = Network(loaded, autocast=autocast, chunk=3)
    network.check()
    row = row_of(network)
    hidden = network.hidden(row).detach()
    expected = torch.log_softmax(functional.linear(hidden.float(), plain.head.weight.detach().float()), -1).gather(-1, row.target_L[:, None])[:, 0]
    found = network(row, ["logp"])["logp"]
    assert found.dtype == torch.float32 and torch.allclose(found, expected, atol=1e-6)
    assert float((plain(row, ["logp"])["logp"] - expected).abs().max().detach()) > 1e-4, "without it the product is rounded to bfloat16"
    found.sum().backward()
    assert network.head.weight.dtype == network.head.weight.grad.dtype == torch.float32
    assert network.causal.get_input_embeddings().weight.dtype == dtype
    assert torch.equal(Companion(network).score(row, ["logp"])["logp"], network(row, ["logp"])["logp"]), "the reference too"


@pytest.mark.rows("GRPO-103")
def test_the_sampler_sees_the_same_head() -> None:
    loaded = tiny_model(dtype=torch.bfloat16, spread=4.0)
    use_float32_head(loaded.module)
    logits = loaded.module(input_ids=torch.arange(5, 12)[None]).logits
    assert logits.dtype == torch.float32 and not torch.equal(logits, logits.bfloat16().float())
    assert loaded.module.generate(torch.arange(5, 12)[None], max_new_tokens=3, do_sample=False).shape[1] > 7
    assert type(copy.deepcopy(loaded.module).lm_head) is type(loaded.module.lm_head)


@pytest.mark.rows("GRPO-103", "GRPO-267")
def test_a_tied_head_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model.cast_lm_head_to_fp32=true needs a head of its own, and that of Qwen3ForCausalLM is tied"):
        use_float32_head(tiny_model(tied=True).module)


def test_it_goes_with_adapters_and_saved_folders(tmp_path) -> None:
    loaded = tiny_model(dtype=torch.bfloat16)
    use_float32_head(loaded.module)
    with torch.no_grad():
        loaded.module.lm_head.weight.add_(1e-4)
    save_policy(loaded, PeftConfig(), tmp_path / "model")
    again = load_folder(tmp_path / "model", ModelConfig(name="hub", dtype="bfloat16"), seed=0, label="again")
    assert again.module.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(again.module.lm_head.weight, loaded.module.lm_head.weight.bfloat16())
    adapted = lora(loaded, LoraConfig(r=2), seed=0)
    assert Network(adapted)(row_of(Network(adapted)), ["logp"])["logp"].dtype == torch.float32
    use_float64 = tiny_model()
    use_float32_head(use_float64.module)
    assert use_float64.module.lm_head.weight.dtype == torch.float64, "nothing is lost"
