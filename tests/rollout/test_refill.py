"""Dynamic sampling: what is replaced, in which order, how much is counted, and that a killed run draws the same tasks."""

from __future__ import annotations

import json

import pytest
from batches import batch_of, rollout
from programs import Programs
from run_configs import default_with
from run_folders import final_weights, metrics, rollouts
from small_runs import Cli

from rlexp.config.algorithms import ReinforceConfig
from rlexp.config.validate import problems
from rlexp.records.rollout import GenerationBatch
from rlexp.rollout.refill import refilled


def played(number: int, *signals: int) -> GenerationBatch:
    """Two tasks or more; 1: rewards differ."""
    batch = batch_of([[rollout([5], [20], float(i * signal), 10 * number + task, i) for i in range(2)] for task, signal in enumerate(signals)])
    batch.step_hint, batch.seconds, batch.metrics = number, {"generation": 1.0}, {"mine": (2.0, 4.0)}
    return batch


def tasks_of(batch: GenerationBatch) -> list[int]:
    return [group.key[1] for group in batch.groups]


def test_groups_without_signal_are_replaced_in_order():
    waiting = [played(1, 0, 0, 1), played(2, 1, 1, 1), played(3, 1, 1, 1)]
    batch = refilled(played(0, 0, 1, 0), lambda: waiting.pop(0), 10)
    assert tasks_of(batch) == [1, 12, 20] and len(waiting) == 1, "no more is played than needed; what is too much is left out"
    assert batch.metrics == {"mine": (6.0, 12.0), "batch/refills": (2.0, 1.0), "batch/dropped_groups": (4.0, 1.0), "batch/flat_groups": (0.0, 1.0)}
    assert batch.seconds == {"generation": 3.0} and batch.generated_tokens == 18 and batch.step_hint == 0


def test_at_the_cap_groups_without_signal_fill_the_batch():
    calls = []
    batch = refilled(played(0, 0, 1, 0), lambda: calls.append(0) or played(1, 0, 0, 1), 1)
    assert tasks_of(batch) == [1, 12, 0] and len(calls) == 1
    assert batch.metrics["batch/flat_groups"] == (1.0, 1.0) and batch.metrics["batch/dropped_groups"] == (3.0, 1.0)
    full = refilled(played(0, 1, 1), lambda: pytest.fail("it is full"), 1)
    assert tasks_of(full) == [0, 1] and full.metrics["batch/refills"] == (0.0, 1.0)


REWARD = """
def score(prompts, completions):
    # about half of the tasks have equal rewards
    number = lambda text: sum(map(ord, str(text)))
    return [float(number(completion) % 3) * (number(prompt) % 2) for prompt, completion in zip(prompts, completions)]
"""


@pytest.mark.rows("GRPO-250")
def test_a_run_draws_the_same_tasks_whether_it_is_killed_or_not(programs: Programs, tmp_path):
    """With half of the tasks flat. Killed at the end of a refilled batch, within one, and while one is made."""
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    whole, killed = (Cli(programs, folder) for folder in folders)
    options = [*whole.rewards(REWARD), "rollout.refill=true", "rollout.max_refills=4", "trainer.max_steps=6", "checkpoint.steps=1"]
    killed.rewards(REWARD)
    assert whole.train(*options).code == 0
    for death in ("2:next:after", "3:backward:after", "4:next:before"):
        assert killed.train(*options, env={"RLEXP_FAULT": death}).code == -9
    assert killed.train(*options).code == 0
    assert final_weights(killed.run) == final_weights(whole.run)
    assert metrics(killed.run) == metrics(whole.run) and rollouts(killed.run) == rollouts(whole.run)
    lines = [line for line in metrics(whole.run) if line["split"] == "train"]
    assert {"batch/refills", "batch/dropped_groups", "batch/flat_groups"} <= lines[0].keys()
    assert sum(line["batch/dropped_groups"] for line in lines) > 0 and all(line["batch/flat_groups"] or line["frac_reward_zero_std"] == 0 for line in lines)
    assert json.loads((whole.run / "summary.json").read_text())["steps"] == 6


def test_it_is_refused_where_flat_groups_teach():
    assert problems(default_with(rollout__refill=True)) == []
    for algorithm in (ReinforceConfig(num_generations=8), ReinforceConfig(num_generations=1)):
        assert any("rollout.refill=true" in text for text in problems(default_with(rollout__refill=True, algorithm=algorithm)))
    gdpo = default_with(rollout__refill=True, algorithm__multi_objective_aggregation="normalize_then_sum")
    assert any("rollout.refill=true would drop groups" in text for text in problems(gdpo))
