"""Companions of self-distillation: the network itself, an adapter that follows the trained one, another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from torch import Tensor

from rlexp.batching.packer import pack
from rlexp.batching.terms import flatten
from rlexp.config.model import HubModelConfig, LoraConfig, PeftConfig
from rlexp.models import hub
from rlexp.models.adapters import adapter_weights, lora, reference_adapter
from rlexp.models.companion import AdapterReference
from rlexp.models.network import Network, RowTensors, row_tensors
from rlexp.models.save import save_policy
from rlexp.models.teacher import FollowingAdapter, LiveCompanion
from rlexp.records.sample import Sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "base"
    save_policy(tiny_model(spread=2.0), PeftConfig(), made)
    return made


def row() -> RowTensors:
    sample = Sample("policy", 0, np.array([5, 6, 7, 8, 9]), np.array([1, 2, 3]), np.array([7, 8, 9]), np.zeros(3, np.float32))
    terms = flatten([sample])
    return row_tensors(pack([sample], terms, [0], budget=100)[0][0].row, terms, torch.device("cpu"))


def adapted(folder: Path, dropout: float = 0.0) -> Network:
    """A network with an adapter that has an effect."""
    network = Network(lora(hub.load(HubModelConfig(path=str(folder), dtype="float64"), seed=0), LoraConfig(r=4, dropout=dropout), seed=1))
    noise(network, 0)
    return network


@torch.no_grad()
def noise(network: Network, seed: int) -> None:
    """Move the trained adapter."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in adapter_weights(network.module).values():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype))


def logp(companion: Any) -> Tensor:
    return companion.score(row(), ["logp"])["logp"]


@torch.no_grad()
def own(network: Network) -> Tensor:
    return network.eval()(row(), ["logp"])["logp"]


@pytest.mark.rows("SDPO-021")
def test_the_teacher_adapter_starts_equal_to_the_students_and_follows_it(folder: Path) -> None:
    network = adapted(folder)
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    teacher = FollowingAdapter(network, "teacher", rate=0.25, every=2)
    assert {name for name, parameter in network.named_parameters() if parameter.requires_grad} == trained
    assert torch.equal(logp(teacher), own(network)), "a trained adapter's teacher is that adapter, not the base"
    before, start = own(network), {name: value.clone() for name, value in adapter_weights(network.module).items()}
    noise(network, 1)
    assert torch.equal(logp(teacher), before) and not torch.equal(own(network), before)
    teacher.follow(1)
    assert torch.equal(logp(teacher), before), "only every second step"
    teacher.follow(2)
    for name, value in adapter_weights(network.module, "teacher").items():
        assert torch.allclose(value, 0.75 * start[name] + 0.25 * adapter_weights(network.module)[name], atol=1e-15)
    assert {name for name, parameter in network.named_parameters() if parameter.requires_grad} == trained
    teacher.restart()
    assert torch.equal(logp(teacher), own(network))


@pytest.mark.rows("SDPO-021")
def test_the_average_of_factors_is_near_the_average_of_updates(folder: Path) -> None:
    """From a fresh adapter (B = 0) and after one step the teacher's update is rate x the student's up to second order; from zero factors it is rate^2."""
    network = Network(lora(hub.load(HubModelConfig(path=str(folder), dtype="float64"), seed=0), LoraConfig(r=4, targets=["q_proj"]), seed=1))
    teacher = FollowingAdapter(network, "teacher", rate=0.05, every=1)
    with torch.no_grad():
        for parameter in adapter_weights(network.module).values():
            parameter.add_(1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0), dtype=parameter.dtype))
    teacher.follow(1)
    student, slow = adapter_weights(network.module), adapter_weights(network.module, "teacher")
    for a in (name for name in student if "lora_A" in name):
        b = a.replace("lora_A", "lora_B")
        whole, followed, from_zero = student[b] @ student[a], slow[b] @ slow[a], 0.05**2 * student[b] @ student[a]
        assert (followed - 0.05 * whole).norm() < 0.05 * 0.05 * whole.norm()
        assert (from_zero - 0.05 * whole).norm() > 0.9 * 0.05 * whole.norm()


@pytest.mark.rows("SDPO-103")
def test_the_teacher_adapter_is_saved_and_restored(folder: Path) -> None:
    network = adapted(folder)
    teacher = FollowingAdapter(network, "teacher", rate=0.25, every=1)
    noise(network, 1)
    teacher.follow(1)
    kept = {name: value.clone() for name, value in teacher.state_dict().items()}
    assert kept and not any(".teacher." in name for name in kept)
    again = FollowingAdapter(adapted(folder), "teacher", rate=0.25, every=1)
    again.load_state_dict(kept)
    assert torch.equal(logp(again), logp(teacher))


@pytest.mark.rows("SDPO-018")
def test_the_base_teacher_of_an_adapter_is_the_network_without_it(folder: Path) -> None:
    plain = Network(hub.load(HubModelConfig(path=str(folder), dtype="float64"), seed=0))
    network = adapted(folder)
    switch = reference_adapter(network)  # type: ignore[arg-type]
    assert switch is not None
    assert torch.equal(logp(AdapterReference(network, switch)), own(plain))


@pytest.mark.rows("SDPO-019", "SDPO-024")
@pytest.mark.parametrize("kind", ["live", "ema", "base"])
def test_teachers_have_no_dropout_and_leave_training_as_it_was(kind: str, folder: Path) -> None:
    network = adapted(folder, dropout=0.5)
    switch = reference_adapter(network)  # type: ignore[arg-type]
    assert switch is not None
    teacher: Any = {
        "live": lambda: LiveCompanion(network),
        "ema": lambda: FollowingAdapter(network, "teacher", rate=0.1, every=1),
        "base": lambda: AdapterReference(network, switch),
    }[kind]()
    network.train()
    first, second = teacher.hidden(row()), teacher.hidden(row())
    assert torch.equal(first, second) and not first.requires_grad and network.training
    if kind != "base":
        assert torch.equal(network.project(first).log_softmax(-1), network.eval().project(network.hidden(row())).log_softmax(-1).detach())
