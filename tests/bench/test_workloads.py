"""The table of workloads is what was asked for, and every point of it can be run."""

from __future__ import annotations

import dataclasses

import pytest

from scripts.bench.workloads import FIGURES, SCALING, TRL_BATCHES, W4, WORKLOADS, Workload

EVERY = [*WORKLOADS.values(), *(workload for points in SCALING.values() for workload in points)]


def test_goals() -> None:
    assert {name: [workload.goals.get(key) for key in ("update", "generation", "step", "memory")] for name, workload in WORKLOADS.items()} == {
        "W1": [3.5, 1.5, 2.3, 0.8],
        "W2": [6.0, 1.5, 3.0, 0.7],
        "W3": [2.0, 1.6, 1.7, 0.8],
        "W4": [2.5, 1.3, 1.7, 0.8],
        "W5": [None] * 4,
        "W6": [None] * 4,
    }
    assert all(workload.goals.keys() <= FIGURES.keys() for workload in EVERY)


def test_sizes() -> None:
    sizes = {name: (one.prompts, one.prompt_tokens, one.generations, one.max_new) for name, one in WORKLOADS.items()}
    assert sizes["W1"] == (8, 200, 8, 128) and sizes["W2"] == (2, 800, 16, 32) and sizes["W3"] == (8, 32, 8, 512) and sizes["W4"] == (4, 150, 8, 96)
    assert sizes["W5"] == sizes["W1"] and sizes["W6"] == sizes["W4"]
    assert WORKLOADS["W5"].beta > 0 and WORKLOADS["W5"].iterations == 2 and WORKLOADS["W6"].lora_rank > 0


@pytest.mark.parametrize("workload", EVERY, ids=lambda workload: f"{workload.name}-{workload.rollouts}-{workload.max_new}-{workload.vocabulary}")
def test_can_be_run(workload: Workload) -> None:
    assert workload.pairs >= 3
    assert workload.hidden % workload.heads == 0
    assert workload.prompt_tokens + workload.max_new <= 2048
    assert workload.trl_batches == tuple(size for size in TRL_BATCHES if workload.rollouts % size == 0)
    for size in workload.trl_batches:  # TRL wants whole groups and whole micro-batches
        assert workload.trial_rollouts(size) % size == workload.trial_rollouts(size) % workload.generations == 0
        assert workload.trial_rollouts(size) <= workload.rollouts


def test_slow_trials_take_one_group_or_one_micro_batch() -> None:
    assert {size: W4.trial_rollouts(size) for size in W4.trl_batches} == {4: 8, 8: 8, 16: 16, 32: 32}


def test_only_one_size_grows() -> None:
    for grown, points in SCALING.items():
        values = [getattr(workload, grown) for workload in points]
        assert values == sorted(set(values))
        assert len({dataclasses.replace(workload, **{grown: 0}) for workload in map(_without_goals, points)}) == 1


def _without_goals(workload: Workload) -> Workload:
    return dataclasses.replace(workload, goals=None)  # type: ignore[arg-type]  # a dict cannot be hashed
