"""What a fake update is said to need is what a real one allocates, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from models_for_tests import tiny_model
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from rlexp.batching.packer import MicroBatch
from rlexp.batching.terms import Terms
from rlexp.config.model import LoraConfig
from rlexp.config.sdpo import SDPOConfig
from rlexp.models.adapters import lora
from rlexp.models.distillation import DISTILLATION, TEACHER, Distillation
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.models.recompute import recompute_activations
from rlexp.models.skeleton import not_moved
from rlexp.planning import update
from rlexp.planning.layout import Layout, Prompts, row_of
from rlexp.planning.update import Peak, Wanted, update_peak

LAYOUT = Layout(Prompts(12, "given", 20), completion=6, rollouts=12, ranks=1, samples=12, micro_batches=1, row=12, generations=4)
LOGP = Wanted(["logp"], [], {})
CASES: dict[str, Mapping[str, object]] = {
    "plain": {},
    "again": {"again": True},
    "dense": {"attention": "sdpa"},
    "entropy": {"wanted": Wanted(["entropy", "logp"], [], {})},
    "lora": {"lora": True},
    "full": {"recompute": "full"},
    "selective": {"recompute": "selective"},
    "bf16": {"autocast": torch.bfloat16},
    "distillation": {"wanted": Wanted([DISTILLATION], [TEACHER], {DISTILLATION: Distillation.of(SDPOConfig(distillation_mode="full_logits"))})},
}


def network_of(case: Mapping[str, object], fake: LoadedModel | None = None) -> Network:
    loaded = tiny_model(dtype=torch.float32) if fake is None else fake
    loaded.module.requires_grad_(True)
    if case.get("lora"):
        with not_moved():
            loaded = lora(loaded, LoraConfig(r=4), seed=0)
    if mode := case.get("recompute"):
        recompute_activations(loaded.module, str(mode))
    return Network(loaded, chunk=16, attention=str(case.get("attention", "tiles")), autocast=case.get("autocast"))  # type: ignore[arg-type]


def peak_of(case: Mapping[str, object], fake: LoadedModel | None = None) -> Peak:
    wanted = case.get("wanted", LOGP)
    assert isinstance(wanted, Wanted)
    row, terms = _row(wanted)
    return update_peak(network_of(case, fake), row, terms, wanted, again=bool(case.get("again")), gradient_share=1.0, copy_share=1.0)


def _row(wanted: Wanted) -> tuple[MicroBatch, Terms]:
    row, terms = row_of(LAYOUT, frozenset(wanted.beside), "policy")
    for made in (row.row, *row.companions.values()):
        made.ids_T %= 50  # real embeddings have bounds
    return row, terms


@pytest.mark.parametrize("name", CASES)
def test_fake_is_real(name: str) -> None:
    real = peak_of(CASES[name])
    loaded = tiny_model(dtype=torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        loaded.module = AutoModelForCausalLM.from_config(loaded.module.config, dtype=torch.float32).eval()
        fake = peak_of(CASES[name], loaded)
    assert fake == real
    assert real.activations > 0


def test_what_each_option_is_for() -> None:
    found = {name: peak_of(case) for name, case in CASES.items()}
    plain = found["plain"]
    assert found["full"].activations < found["selective"].activations < plain.activations
    assert found["again"].gradients > plain.gradients
    assert found["lora"].gradients < plain.gradients
    assert found["distillation"].logits > plain.logits
    assert found["bf16"].copies > 0 == plain.copies


def test_sharded_gradients_move_the_peak() -> None:
    row, terms = _row(LOGP)
    whole = update_peak(network_of({}), row, terms, LOGP, again=True, gradient_share=1.0, copy_share=1.0)
    shared = update_peak(network_of({}), row, terms, LOGP, again=True, gradient_share=0.01, copy_share=1.0)
    assert shared.activations + shared.logits >= whole.activations + whole.logits


def test_gradients_are_gone_afterwards() -> None:
    network = network_of({})
    row, terms = _row(LOGP)
    update_peak(network, row, terms, LOGP, again=False, gradient_share=1.0, copy_share=1.0)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("name", ["plain", "full", "distillation"])
def test_a_few_chunks_tell_for_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LAYOUT.row * LAYOUT.completion > update.CHUNKS * 16
    few = peak_of(CASES[name])
    monkeypatch.setattr(update, "CHUNKS", 100)
    whole = peak_of(CASES[name])
    assert few.logits == whole.logits and few.gradients == whole.gradients
    assert few.activations == pytest.approx(whole.activations, rel=0.05)
