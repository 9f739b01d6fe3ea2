"""Two processes that talk over gloo: groups, prompts and metrics come together again."""

from __future__ import annotations

import time

import pytest

REWARDS = """
import os

RANK = int(os.environ["RANK"])

def echo(prompts, completions, completion_ids, k, log_metric, log_extra):
    assert len(prompts) == len(completions) == len(k) == 66
    if RANK == 0:
        log_metric("hit", 1.0)
        log_metric("hit", 0.0)
    else:
        log_extra("note", ["x", "y"] * 33)
    return [float(prompt == f"item {number:02d}" and completion == f"{number:02d}") for prompt, completion, number in zip(prompts, completions, k)]

def parity(k):
    return [float(number % 2) for number in k]
"""


@pytest.mark.cases("S05", "S27", "S52")
@pytest.mark.rows("GRPO-022", "GRPO-121", "GRPO-122", "GRPO-182")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes(case, strategy: str) -> None:
    """33 prompts of 4 rollouts: each process plays 66, so the rollouts of the 17th prompt lie on both."""
    case.tasks(*[{"prompt": f"item {number:02d}", "k": number} for number in range(33)])
    case.rewards(REWARDS)
    overrides = ["algorithm.num_generations=4", "rollout.prompts_per_batch=33", f"strategy={strategy}", "strategy.timeout=40", "cluster.processes_per_node=2"]
    started = time.monotonic()
    run = case.train(*overrides, generator="echo", terms={"echo": 0.0, "parity": 1.0})
    assert time.monotonic() - started < 90, "nobody waits for a metric or a gradient that the other process does not have"
    rollouts, metrics = run.rollouts(), run.metrics()
    assert rollouts["prompt"] == [f"item {number:02d}" for number in range(33) for _ in range(4)]
    assert rollouts["completion"] == [prompt[-2:] for prompt in rollouts["prompt"]] and metrics["rewards/echo/mean"] == 1.0
    assert set(rollouts["advantage"]) == {0.0} and metrics["frac_reward_zero_std"] == 1.0, "groups of equal rewards, whatever lies beside them"
    assert metrics["reward"] == pytest.approx(16 / 33)
    assert metrics["hit"] == 0.5, "the mean over calls; the process that logged nothing is no 0"
    assert rollouts["note"] == [None] * 66 + ["x", "y"] * 33
    assert metrics["loss"] == 0.0 and "grad_norm" not in metrics
