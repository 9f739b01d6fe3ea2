"""Weights into a real engine in this process: exact after every sync, in every form, and what is said when they are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_runs import NAME, Setup
from local_generators import teacher_forced

from rlexp.generation.weight_sync.base import SyncError
from rlexp.records.request import Request, Sampling

Make = Callable[..., Setup]


def named(setup: Setup) -> list[str]:
    """Names of what the last push sent."""
    return [name for name, _ in setup.sync.tensors[NAME].stream(everything=not setup.sync.base_sent)]


@pytest.mark.rows("GRPO-195")
@pytest.mark.parametrize("lora", [False, True], ids=["full", "merged"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_five_syncs_are_exact(engine: Make, tied: bool, lora: bool) -> None:
    setup = engine(tied=tied, lora=lora, verify_sync="always")
    before = {name: value.detach().clone() for name, value in setup.loaded.module.named_parameters() if not value.requires_grad}
    for version in range(1, 6):
        setup.train(seed=version)
        setup.push(version)
        assert setup.gap(seed=version) < 1e-5
        assert setup.generator.version == setup.generator.weights.version() == version
    assert bool(before) == lora
    for name, value in setup.loaded.module.named_parameters():
        assert name not in before or torch.equal(value, before[name])  # merging never touches the base


def test_an_engine_that_was_not_sent_the_weights_differs(engine: Make) -> None:
    """So that equality above means something."""
    setup = engine()
    setup.push(1)
    setup.train()
    assert setup.gap() > 0.05


def test_frozen_weights_are_sent_once(engine: Make) -> None:
    setup = engine(lora=True)
    everything = named(setup)
    setup.push(1)
    changing = named(setup)
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} == set(everything) - set(changing)
    assert all(name.startswith("model.layers.") for name in changing)


@pytest.mark.cases("S45")
@pytest.mark.parametrize("length", [24, 300])
def test_old_keys_and_values_are_forgotten(engine: Make, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = engine()
    prompt = np.random.default_rng(3).integers(0, 90, length)

    def gap(number: int) -> float:
        turn = setup.generator.sample_wave([Request(prompt, number, 8, Sampling())])[0]
        return float(np.abs(turn.logprobs - teacher_forced(setup.loaded.module, turn, Sampling())).max())

    setup.push(1)
    assert gap(1) < 1e-3
    last = setup.loaded.module.model.layers[-1]
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    setup.push(2)
    assert gap(2) < 1e-3
    if length < 128:
        return
    monkeypatch.setattr(setup.generator.engines[NAME], "reset_prefix_cache", lambda: True)
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    setup.push(3)
    assert gap(3) > 1e-2  # with the cache kept it is seen
    monkeypatch.undo()
    setup.push(4)
    assert gap(4) < 1e-3


def test_a_tied_head_that_stays_old_is_noticed_and_named(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = engine(tied=True, verify_sync="always")
    setup.push(1)
    monkeypatch.setattr(setup.generator.engines[NAME], "refresh_tied_head", lambda: None)
    setup.train()
    with pytest.raises(SyncError, match=r"log-probs of policy differ .* tensors that differ: lm_head.weight \(tied\) \(differs by .*the engine is resumed"):
        setup.push(2)
    monkeypatch.undo()
    setup.push(3)
    assert setup.gap() < 1e-5


def test_a_frozen_weight_that_moved_is_named(engine: Make) -> None:
    setup = engine(lora=True, verify_sync="always")
    setup.push(1)
    with torch.no_grad():
        setup.loaded.module.get_base_model().lm_head.weight.mul_(1.5)
    with pytest.raises(SyncError, match=r"tensors that differ: lm_head.weight \(differs by"):
        setup.push(2)


@pytest.mark.parametrize(("when", "checks"), [("first", 1), ("always", 3), ("never", 0)])
def test_verify_sync(engine: Make, when: str, checks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = engine(verify_sync=when)
    count = []
    score = setup.generator.score
    monkeypatch.setattr(setup.generator, "score", lambda *given: count.append(1) or score(*given))
    for version in (1, 2, 3):
        setup.push(version)
    assert len(count) == checks


def test_a_version_that_does_not_arrive(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = engine()
    setup.push(4)
    monkeypatch.setattr(setup.generator.engines[NAME], "set_version", lambda version: None)
    with pytest.raises(SyncError, match="weight version 5 was sent, and the engine says it has 4"):
        setup.push(5)


def test_weights_that_cannot_be_loaded(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = engine()
    setup.push(1)

    def broken(tensors: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(setup.generator.engines[NAME], "load", broken)
    with pytest.raises(SyncError, match=r"weights of version 2 could not be loaded into vLLM: RuntimeError: no room \(the engine is paused\)"):
        setup.push(2)


@pytest.mark.rows("GRPO-195")
def test_an_adapter_alone(engine: Make) -> None:
    """Served by the engine: every sync sends the adapter and nothing else."""
    setup = engine(lora=True, sync_lora="adapter")
    for version in range(1, 6):
        setup.train(seed=version)
        setup.push(version)
        assert setup.gap(seed=version) < 1e-5 and setup.generator.weights.version() == version
    turn = setup.generator.sample_wave([Request(np.arange(3, 12), 5, 12)])[0]
    np.testing.assert_allclose(turn.logprobs, teacher_forced(setup.loaded.module, turn, Sampling()), atol=1e-5)


@pytest.mark.rows("GRPO-191")
def test_the_transformers_implementation(engine: Make) -> None:
    setup = engine(model_impl="transformers")
    for version in (1, 2):
        setup.train(seed=version)
        setup.push(version)
        assert setup.gap() < 1e-4
