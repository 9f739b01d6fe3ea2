"""How many steps a run has, what each learns from, and at which rate."""

from __future__ import annotations

import pytest


def planned_steps(out: str) -> str:
    """The number of optimizer steps that run.dry=true prints."""
    (line,) = [line for line in out.splitlines() if "optimizer steps" in line]
    return line.split()[-1]


@pytest.mark.cases("S13")
@pytest.mark.rows("GRPO-006", "GRPO-094")
def test_the_schedule_ends_at_the_last_step(case) -> None:
    case.tasks(*[{"prompt": f"{n}+1="} for n in range(8)])
    case.answers([[40, 41], [42]])
    case.scores(1.0, 0.0)
    batches = ["rollout.prompts_per_batch=2", "trainer.steps_per_batch=2", "algorithm.num_iterations=2", "trainer.max_steps=null", "trainer.epochs=1"]
    run = case.train(*batches, "algorithm.num_generations=2", "optimizer.schedule=linear", "optimizer.learning_rate=1.6e-5")
    rates = [line["learning_rate"] for line in run.lines()]
    assert len(rates) == 16 and [rates[0], rates[8], rates[15]] == pytest.approx([1.6e-5, 8e-6, 1e-6])


@pytest.mark.cases("S28")
@pytest.mark.rows("GRPO-006", "GRPO-094")
@pytest.mark.parametrize("generations", [4, 8])
def test_how_many_steps_an_epoch_has(generations: int, case) -> None:
    case.tasks(*[{"prompt": f"{n}+1="} for n in range(10)])
    case.answers([[40, 41], [42]])
    case.scores(1.0, 0.0)
    overrides = ["rollout.prompts_per_batch=4", "trainer.max_steps=null", "trainer.epochs=2", f"algorithm.num_generations={generations}"]
    plan = case.train(*overrides, "run.dry=true")
    run = case.train(*overrides)
    assert planned_steps(plan.done.out) == "4" and [line["step"] for line in run.lines()] == [1, 2, 3, 4]
    said = [line for line in run.done.err.splitlines() if "rollout.prompts_per_batch=4" in line]
    assert said and "2" in said[0].split("rollout.prompts_per_batch")[0]


@pytest.mark.cases("S28")
def test_the_second_pass_trains_the_same_slices(case) -> None:
    case.tasks(*[{"prompt": f"{n}+1="} for n in range(9)])
    case.answers([[40, 41], [42]])
    case.scores(1.0, 0.0)
    batches = [
        "rollout.prompts_per_batch=3",
        "trainer.steps_per_batch=2",
        "algorithm.num_iterations=2",
        "trainer.max_steps=null",
        "algorithm.num_generations=4",
    ]
    plan = case.train(*batches, "run.dry=true")
    run = case.train(*batches, "optimizer.learning_rate=0")
    assert planned_steps(plan.done.out) == "12" and [line["step"] for line in run.lines()] == list(range(1, 13))
    # three chunks of the prompts in order; each is trained by two steps of six rollouts, twice over
    assert [sorted({prompt[0] for prompt in run.rollouts(step)["prompt"]}) for step in (1, 5, 9)] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"]]
    assert run.json("summary.json")["tokens"]["trained"] == 2 * run.json("summary.json")["tokens"]["generated"]
    losses = [(line["loss"], line["grad_norm"]) for line in run.lines()]
    assert all(losses[first] == losses[first + 2] for start in (0, 4, 8) for first in (start, start + 1)), "without learning the second pass repeats the first"
    assert len(set(losses)) == 6


@pytest.mark.cases("S29")
def test_fewer_prompts_than_one_batch(case) -> None:
    case.tasks(*[{"prompt": f"{n}+1="} for n in range(3)])
    case.answers([[40]])
    case.scores(1.0)
    run = case.train("rollout.prompts_per_batch=4", "trainer.max_steps=null", code=1)
    assert "3 training tasks" in run.done.err and "rollout.prompts_per_batch=4" in run.done.err and "Traceback" not in run.done.err
    assert not run.folder.exists() or run.json("status.json")["status"] != "finished"
