"""peft=lora: fresh and trained adapters, their reference, what is saved, what is refused; peft=none."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rlexp.batching.packer import pack
from rlexp.batching.terms import flatten
from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig, LoraConfig, PeftConfig
from rlexp.models import hub
from rlexp.models.adapters import lora, no_adapter, reference_adapter
from rlexp.models.companion import AdapterReference
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network, row_tensors
from rlexp.models.save import save_policy
from rlexp.records.sample import Sample

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("models") / "base"
    save_policy(tiny_model(spread=2.0), PeftConfig(), made)
    return made


def base(folder: Path) -> LoadedModel:
    return hub.load(HubModelConfig(path=str(folder), dtype="float64"), seed=0)


def logits(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module(IDS).logits


def trained(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters() if parameter.requires_grad}


def frozen(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters() if not parameter.requires_grad}


def learn(module: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW([parameter for parameter in module.parameters() if parameter.requires_grad], lr=0.05, weight_decay=0.1)
    for _ in range(steps):
        module(IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.rows("GRPO-173")
def test_a_fresh_adapter_changes_nothing_and_alone_is_trained(folder):
    plain = base(folder)
    before = logits(plain.module)
    policy = lora(base(folder), LoraConfig(r=4, alpha=8), seed=1)
    assert torch.equal(logits(policy.module), before)
    names = trained(policy.module)
    assert len(names) == 2 * 7 * 2
    assert all("lora_" in name and ".default." in name for name in names)
    assert not any("lm_head" in name or "embed" in name for name in names)
    weights = frozen(policy.module)
    learn(policy.module)
    assert not torch.equal(logits(policy.module), before)
    for name, value in frozen(policy.module).items():
        assert torch.equal(value, weights[name]), name


def test_an_adapter_starts_from_its_seed_and_leaves_the_global_random_state_alone(folder):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = trained(lora(base(folder), LoraConfig(r=4), seed=1).module)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    again = trained(lora(base(folder), LoraConfig(r=4), seed=1).module)
    other = trained(lora(base(folder), LoraConfig(r=4), seed=2).module)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_rank_scale_and_targets(folder):
    policy = lora(base(folder), LoraConfig(r=3, alpha=12, targets=["q_proj", "v_proj"]), seed=1)
    assert len(trained(policy.module)) == 2 * 2 * 2
    layer = policy.module.get_base_model().model.layers[0].self_attn.q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert a.shape[0] == b.shape[1] == 3
    nn.init.normal_(b)
    x = torch.randn(2, 32, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer.get_base_layer()(x) + 4.0 * x @ a.T @ b.T)


@pytest.mark.rows("GRPO-169")
def test_the_reference_of_a_fresh_adapter_is_the_bare_base(folder):
    before = logits(base(folder).module)
    policy = lora(base(folder), LoraConfig(r=4), seed=1)
    learn(policy.module)
    after, flags = logits(policy.module), [parameter.requires_grad for parameter in policy.module.parameters()]
    switch = reference_adapter(policy)
    assert switch is not None
    with switch():
        assert torch.equal(logits(policy.module), before)
    assert torch.equal(logits(policy.module), after)
    assert [parameter.requires_grad for parameter in policy.module.parameters()] == flags
    with pytest.raises(RuntimeError, match="stop"), switch():
        raise RuntimeError("stop")
    assert torch.equal(logits(policy.module), after)
    assert reference_adapter(no_adapter(base(folder), PeftConfig(), seed=0)) is None


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory) -> Path:
    """A folder with a trained adapter."""
    policy = lora(base(folder), LoraConfig(r=4, alpha=8), seed=1)
    learn(policy.module)
    made = tmp_path_factory.mktemp("adapters") / "adapter"
    save_policy(policy, LoraConfig(), made)
    return made


@pytest.mark.rows("GRPO-169")
@pytest.mark.cases("S58")
def test_the_reference_of_a_trained_adapter_is_a_frozen_copy_of_it(folder, adapter, tmp_path):
    config = LoraConfig(path=str(adapter))
    policy = lora(base(folder), config, seed=1)
    start = logits(policy.module)
    assert not torch.equal(start, logits(base(folder).module))
    assert len(trained(policy.module)) == 2 * 7 * 2
    assert not any(".reference." in name for name in trained(policy.module))
    switch = reference_adapter(policy)
    assert switch is not None
    with switch():
        assert torch.equal(logits(policy.module), start)
    learn(policy.module)
    moved = logits(policy.module)
    assert not torch.equal(moved, start)
    with switch():
        assert torch.equal(logits(policy.module), start)
    assert torch.equal(logits(policy.module), moved)
    resumed = lora(base(folder), config, seed=1)
    resumed.module.load_state_dict(policy.module.state_dict())
    assert torch.equal(logits(resumed.module), moved)
    again = reference_adapter(resumed)
    assert again is not None
    with again():
        assert torch.equal(logits(resumed.module), start)
    save_policy(policy, config, tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").glob("**/adapter_model.safetensors")] == ["adapter_model.safetensors"]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)), moved)


@pytest.mark.cases("S58", "S09")
@pytest.mark.parametrize("start", ["fresh", "trained"])
def test_kl_to_the_reference_is_exactly_zero_at_first_and_positive_later(folder, adapter, start):
    policy = lora(base(folder), LoraConfig(r=4, path=str(adapter) if start == "trained" else None), seed=1)
    network = Network(policy, temperature=0.7)
    reference = AdapterReference(network, reference_adapter(policy))
    ids = np.array([5, 6, 7, 8, 9])
    samples = [Sample("policy", 0, ids, np.arange(2, 4), ids[3:], np.zeros(2, np.float32))]
    terms = flatten(samples)
    row = row_tensors(pack(samples, terms, [0], budget=100)[0][0].row, terms, network.device)
    with torch.no_grad():
        mine = network(row, ["logp"])["logp"]
    assert torch.equal(reference.score(row, ["logp"])["logp"], mine)
    learn(policy.module)
    assert torch.equal(reference.score(row, ["logp"])["logp"], mine)
    with torch.no_grad():
        difference = reference.score(row, ["logp"])["logp"] - network(row, ["logp"])["logp"]
    assert (difference.exp() - 1 - difference).sum() > 0


@pytest.mark.parametrize("tied", [False, True])
def test_the_merged_model_stands_alone_and_merging_leaves_the_live_weights_as_they_are(tmp_path, tied):
    save_policy(tiny_model(tied=tied, kind="llama"), PeftConfig(), tmp_path / "base")
    policy = lora(base(tmp_path / "base"), LoraConfig(r=4, save="merged"), seed=1)
    learn(policy.module)
    state = {name: value.clone() for name, value in policy.module.state_dict().items()}
    expected = logits(policy.module)
    save_policy(policy, LoraConfig(save="merged"), tmp_path / "model")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    assert not (tmp_path / "model" / "adapter_config.json").exists()
    torch.testing.assert_close(logits(merged), expected, atol=1e-12, rtol=0)
    assert not torch.allclose(logits(merged), logits(base(tmp_path / "base").module))
    assert all(torch.equal(value, state[name]) for name, value in policy.module.state_dict().items())
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text())["eos_token_id"] == [2]


def test_an_adapter_remembers_its_base(folder, adapter):
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)


def test_an_adapter_whose_base_is_nowhere_on_disk_is_saved_merged(folder, tmp_path, caplog):
    random = hub.load(HubModelConfig(path=str(folder), dtype="float64", random_weights=True), seed=5)
    policy = lora(random, LoraConfig(r=4), seed=1)
    learn(policy.module)
    save_policy(policy, LoraConfig(), tmp_path / "model")
    assert "exist nowhere else" in caplog.text
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)), logits(policy.module), atol=1e-12, rtol=0)


@pytest.mark.rows("GRPO-173")
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_adapters_on_the_head_or_the_embeddings_are_refused(folder, target):
    with pytest.raises(UserError, match=r"peft\.targets: an adapter on the (head|embeddings)"):
        lora(base(folder), LoraConfig(targets=["q_proj", target]), seed=0)


def test_targets_that_fit_nothing_are_refused(folder):
    with pytest.raises(UserError, match=r"peft\.targets: quarry fits no layer; use all-linear alone, or some of down_proj, gate_proj, k_proj, lm_head"):
        lora(base(folder), LoraConfig(targets=["q_proj", "quarry"]), seed=0)
    with pytest.raises(UserError, match=r"peft\.targets: the list is empty"):
        lora(base(folder), LoraConfig(targets=[]), seed=0)


def test_a_path_without_a_fitting_adapter_is_refused(folder, adapter, tmp_path):
    with pytest.raises(UserError, match=r"peft\.path=.* is no folder with a LoRA adapter"):
        lora(base(folder), LoraConfig(path=str(folder)), seed=0)
    save_policy(tiny_model(hidden=16), PeftConfig(), tmp_path / "other")
    with pytest.raises(UserError, match=r"peft\.path=.* does not fit the model"):
        lora(base(tmp_path / "other"), LoraConfig(path=str(adapter)), seed=0)


@pytest.mark.rows("GRPO-173")
def test_only_plain_lora_adapters_can_be_continued(folder, tmp_path):
    from peft import PromptTuningConfig, get_peft_model

    get_peft_model(base(folder).module, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"only plain LoRA adapters can be trained further"):
        lora(base(folder), LoraConfig(path=str(tmp_path)), seed=0)


def test_without_peft_the_extra_is_named(folder, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'rlexp\[peft\]'"):
        lora(base(folder), LoraConfig(), seed=0)


def test_without_an_adapter_all_weights_are_trained(folder):
    loaded = base(folder)
    loaded.module.requires_grad_(False)
    assert all(parameter.requires_grad for parameter in no_adapter(loaded, PeftConfig(), seed=0).module.parameters())
