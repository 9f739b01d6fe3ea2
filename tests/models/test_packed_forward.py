"""Packed, prefix-shared rows give the numbers of each sample alone; the head never holds the whole vocabulary at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from rlexp.batching.packer import pack
from rlexp.batching.terms import flatten
from rlexp.models.companion import Companion
from rlexp.models.network import Network, row_tensors
from rlexp.records.sample import Sample
from rlexp.records.turn import Candidates


def sample(ids: list[int], trained: int, rollout: int = 0, candidates: Candidates | None = None) -> Sample:
    array = np.array(ids)
    position = np.arange(len(ids) - trained - 1, len(ids) - 1)
    return Sample("policy", rollout, array, position, array[position + 1], np.zeros(trained, np.float32), candidates)


BRANCHING = [
    sample([5, 6, 7, 8, 9], 2),
    sample([5, 6, 7, 8, 10, 11], 3),
    sample([5, 6, 7, 8, 9], 2),
    sample([40, 41, 42], 2),
    sample([5, 6, 12], 1),
    sample([5, 6, 7, 8, 9, 13, 14, 15], 5),
]


def columns(network: Network, samples: list[Sample], budget: int = 1000, names: tuple[str, ...] = ("logp", "entropy")) -> dict[str, torch.Tensor]:
    terms = flatten(samples)
    out = {name: torch.full((terms.count,), float("nan"), dtype=torch.float64) for name in names}
    for micro in pack(samples, terms, range(len(samples)), budget=budget)[0]:
        found = network(row_tensors(micro.row, terms, network.device), names)
        for name in names:
            out[name] = out[name].index_put((torch.from_numpy(micro.row.term_L),), found[name].double())
    return out


@pytest.mark.rows("GRPO-008")
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("attention", ["sdpa", "eager", "tiles"])
def test_packed_equals_each_sample_alone(kind: str, dtype: torch.dtype, tolerance: float, attention: str) -> None:
    loaded = tiny_model(kind=kind, dtype=dtype, attention="eager" if attention == "eager" else "sdpa", spread=2.0)
    network = Network(loaded, temperature=0.7, chunk=3, attention=attention)
    packed = columns(network, BRANCHING)
    at = 0
    for item in BRANCHING:
        logits = loaded.module(input_ids=torch.from_numpy(item.ids)[None]).logits[0].double() / 0.7
        log_probs = torch.log_softmax(logits, -1)[item.position_L]
        n = item.terms
        assert torch.allclose(packed["logp"][at : at + n], log_probs.gather(-1, torch.from_numpy(item.target_L)[:, None])[:, 0], atol=tolerance, rtol=0)
        assert torch.allclose(packed["entropy"][at : at + n], -(log_probs.exp() * log_probs).sum(-1), atol=10 * tolerance, rtol=0)
        at += n


def test_budget_and_chunk_do_not_change_gradients() -> None:
    def gradient(budget: int, chunk: int) -> torch.Tensor:
        loaded = tiny_model()
        network = Network(loaded, chunk=chunk)
        found = columns(network, BRANCHING, budget)
        weights = torch.linspace(-1, 1, len(found["logp"]), dtype=torch.float64)
        (found["logp"] * weights + 0.3 * found["entropy"] * weights).sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in loaded.module.parameters()])

    whole = gradient(1000, 1000)
    assert whole.abs().max() > 1e-3
    for budget, chunk in ((1000, 2), (10, 1000), (8, 3)):
        assert torch.allclose(gradient(budget, chunk), whole, atol=1e-9, rtol=0)


def test_gradient_of_the_head_equals_plain_autograd() -> None:
    loaded = tiny_model()
    network = Network(loaded, chunk=2)
    columns(network, BRANCHING)["logp"].sum().backward()
    mine = [parameter.grad.clone() for parameter in loaded.module.parameters()]
    loaded.module.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for item in BRANCHING:
        log_probs = torch.log_softmax(loaded.module(input_ids=torch.from_numpy(item.ids)[None]).logits[0], -1)[item.position_L]
        total = total + log_probs.gather(-1, torch.from_numpy(item.target_L)[:, None]).sum()
    total.backward()
    for gradient, parameter in zip(mine, loaded.module.parameters(), strict=True):
        assert torch.allclose(gradient, parameter.grad, atol=1e-9, rtol=0)


@pytest.mark.cases("S17")
def test_last_token_of_a_sample_predicts_nothing() -> None:
    network = Network(tiny_model())
    first, second = sample([10, 11, 12], 2), sample([20, 21], 1)
    terms = flatten([first, second])
    row = pack([first, second], terms, [0, 1], budget=100)[0][0].row
    assert row.depth_T.tolist() == [0, 1, 0]
    assert terms.target_L[row.term_L].tolist() == [11, 12, 21]
    assert not {10, 20} & set(terms.target_L.tolist())
    packed = columns(network, [first, second])["logp"]
    other = columns(network, [sample([30, 31, 32], 2), second])["logp"]
    alone = columns(network, [second])["logp"]
    assert torch.allclose(packed[2:], alone, atol=1e-10, rtol=0) and torch.allclose(other[2:], alone, atol=1e-10, rtol=0)


def test_candidates_renormalise() -> None:
    loaded = tiny_model(spread=3.0)
    kept = [[7, 20, 30], [8, 9]]
    item = sample([5, 6, 7, 8], 2, candidates=Candidates(np.array([*kept[0], *kept[1]]), np.array([0, 3, 5])))
    found = columns(Network(loaded), [item], names=("logp",))["logp"]
    logits = loaded.module(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0].double()
    for i, (position, target) in enumerate(((1, 7), (2, 8))):
        assert torch.allclose(found[i], torch.log_softmax(logits[position, kept[i]], -1)[0 if target in (7, 8) else 1], atol=1e-10)


@pytest.mark.rows("GRPO-102")
def test_identical_companion_gives_identical_numbers_even_with_dropout_configured() -> None:
    loaded = tiny_model()
    loaded.module.config.attention_dropout = 0.5
    network = Network(loaded, temperature=1.3).eval()
    companion = Companion(network)
    terms = flatten(BRANCHING)
    row = pack(BRANCHING, terms, range(len(BRANCHING)), budget=1000)[0][0].row
    tensors = row_tensors(row, terms, network.device)
    network.train()
    assert torch.equal(companion.score(tensors, ["logp"])["logp"], network.eval()(tensors, ["logp"])["logp"])


class _Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(item, torch.Tensor):
                self.elements = max(self.elements, item.numel())
        return out


@pytest.mark.cases("S57")
def test_no_tensor_of_the_whole_vocabulary() -> None:
    vocabulary, terms_count, chunk = 50_000, 4096, 256
    loaded = tiny_model(vocab=vocabulary, hidden=8, layers=1, heads=2, dtype=torch.float32, context=128)
    network = Network(loaded, chunk=chunk)
    items = [sample([1, *range(start, start + 64)], 64, rollout=start) for start in range(2, 2 + terms_count, 64)]
    terms = flatten(items)
    companion = Companion(network)
    with _Largest() as largest:
        # 64 rows of 64 terms would hide the size: one row holds all of them, so only the chunking bounds the logits
        row = pack(items, terms, range(len(items)), budget=10_000)[0][0].row
        tensors = row_tensors(row, terms, network.device)
        companion.score(tensors, ["logp"])
        found = network(tensors, ["logp", "entropy"])
        (found["logp"].sum() + found["entropy"].sum()).backward()
    attention = len(row.ids_T) ** 2 * 2
    assert terms.count == terms_count
    assert largest.elements <= max(chunk * vocabulary, attention)
    assert max(chunk * vocabulary, attention) < terms_count * vocabulary / 4


def test_unknown_attention_types_are_refused() -> None:
    loaded = tiny_model()
    loaded.module.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        Network(loaded)
    Network(tiny_model()).check()
