"""Samples that fit no row, and prompts that fit no context."""

from __future__ import annotations

import pytest


@pytest.mark.cases("S40")
@pytest.mark.rows("ASYNC-252")
def test_a_sample_that_cannot_fit_a_row(case) -> None:
    case.tasks({"prompt": "x" * 40})
    case.answers([[30] * 30, [31], [32, 33], [34]])
    case.scores(1.0, 0.0, 0.0, 0.0)
    overrides = ["model.context=128", "rollout.max_completion_length=32", "trainer.tokens_per_microbatch=64", "algorithm.num_generations=4"]
    refused = case.train(*overrides, where="refused", code=1)
    assert "72 > 64" in refused.done.err and "rollout.max_completion_length=32" in refused.done.err and "trainer.tokens_per_microbatch=64" in refused.done.err
    assert "Traceback" not in refused.done.err and not (refused.folder / "metrics.jsonl").exists()

    run = case.train(*overrides, "trainer.oversize_samples=drop", where="dropped")
    metrics, rollouts = run.metrics(), run.rollouts()
    assert metrics["batch/dropped_oversize_count"] == 1 and metrics["completions/max_length"] == 30 and metrics["reward"] == 0.25
    assert rollouts["advantage"] == [0.75, -0.25, -0.25, -0.25], "the reward of the dropped rollout is in the baseline"
    assert run.json("summary.json")["tokens"] == {"generated": 34, "forwarded": 40 + 1, "trained": 4}, "no trained sample was cut to fit"
    assert metrics["loss"] == pytest.approx(0.25, abs=1e-6), "the mean over the four tokens that are left"


@pytest.mark.cases("S46")
@pytest.mark.parametrize("generator", ["native", "transformers"])
def test_a_prompt_longer_than_the_context(generator: str, case) -> None:
    case.tasks({"prompt": "ab" * 15}, {"prompt": "a" * 40})
    case.rewards("def score(prompt_texts):\n    return [float(i) for i, _ in enumerate(prompt_texts)]\n")
    table = case.table(probabilities=[0.0, 0.5, 0.5], words=["<end>", "a", "b"], eos_ids=[0], context=32)
    overrides = [*table, "rollout.max_completion_length=8", "algorithm.num_generations=2"]
    refused = case.train(*overrides, generator=generator, where="refused", code=1)
    assert "training task 1" in refused.done.err and "40 > 32" in refused.done.err and "Traceback" not in refused.done.err

    skipped = case.train(*overrides, "data.overlong_prompt=drop", generator=generator, where="drop")
    assert "1 tasks left out" in skipped.done.err
    assert [len(ids) for ids in skipped.rollouts()["prompt_ids"]] == [30, 30]
    assert [len(ids) for ids in skipped.rollouts()["ids"]] == [2, 2] and skipped.rollouts()["finish"] == ["length"] * 2
    assert skipped.metrics()["completions/clipped_ratio"] == 1.0

    cut = case.train(*overrides, "data.overlong_prompt=cut_left", "rollout.prompts_per_batch=2", generator=generator, where="cut")
    assert "1 prompts cut on the left" in cut.done.err
    assert [len(ids) for ids in cut.rollouts()["prompt_ids"]] == [30, 30, 31, 31] and [len(ids) for ids in cut.rollouts()["ids"]] == [2, 2, 1, 1]
