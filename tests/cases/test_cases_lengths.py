"""Truncated, EOS and stop: which tokens are counted and which are trained."""

from __future__ import annotations

import pytest

LETTERS = list("pabcdefghi")


def lengths(metrics: dict) -> dict[str, float]:
    """The length metrics without their common prefix."""
    return {name.removeprefix("completions/"): value for name, value in metrics.items() if name.startswith("completions/")}


@pytest.mark.cases("S16")
@pytest.mark.rows("GRPO-046", "GRPO-210", "GRPO-211", "GRPO-212", "GRPO-213", "GRPO-214", "GRPO-215", "GRPO-216")
def test_lengths_are_counted_before_truncated_answers_are_masked(case) -> None:
    case.tasks({"prompt": "a"})
    case.answers([[4, 5, 9], [4, 5, 6, 7, 8], [5, 5, 5, 9]])
    case.scores(1.0, 0.0, 0.0)
    table = case.table(probabilities=[0.1] * 10, words=LETTERS, eos_ids=[9])
    overrides = ["algorithm.num_generations=3", "rollout.max_completion_length=5", "loss.mask_truncated_completions=true"]
    run = case.train(*table, *overrides)
    assert lengths(run.metrics()) == pytest.approx(
        {
            **{"mean_length": 4.0, "min_length": 3.0, "max_length": 5.0, "clipped_ratio": 1 / 3},
            **{"mean_terminated_length": 3.5, "min_terminated_length": 3.0, "max_terminated_length": 4.0},
        }
    )
    # advantages 2/3, -1/3, -1/3; the masked rollout keeps its share in the baseline and leaves the denominator: 7 and not 12
    assert run.rollouts()["advantage"] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert run.metrics()["loss"] == pytest.approx(-(2 / 3 * 3 - 1 / 3 * 4) / 7, abs=1e-6)
    assert run.json("summary.json")["tokens"] == {"generated": 12, "forwarded": 1 + 2 + 3, "trained": 7}


@pytest.mark.cases("S18")
@pytest.mark.rows("GRPO-046")
@pytest.mark.parametrize(("masked", "trained"), [("false", 8), ("true", 5)])
def test_a_model_with_two_end_of_turn_ids(masked: str, trained: int, case, letters_folder) -> None:
    folder = letters_folder(eos_ids=[7, 9], eos=9, pad=0)
    case.tasks({"prompt": "a"})
    case.answers([[4, 5, 7], [4, 9], [4, 5, 6]])
    case.scores(1.0, 0.0, 0.0)
    overrides = ["model=hub", f"model.path={folder}", "algorithm.num_generations=3", "rollout.max_completion_length=3"]
    run = case.train(*overrides, f"loss.mask_truncated_completions={masked}")
    found = lengths(run.metrics())
    expected = {"clipped_ratio": 1 / 3, "mean_terminated_length": 2.5, "mean_length": 8 / 3}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert run.rollouts()["finish"] == ["eos", "eos", "length"]
    assert run.json("summary.json")["tokens"]["trained"] == trained
    sums = [2 / 3 * 3, -1 / 3 * 2, -1 / 3 * 3]
    assert run.metrics()["loss"] == pytest.approx(-sum(sums) / 8 if masked == "false" else -sum(sums[:2]) / 5, abs=1e-6)


@pytest.mark.cases("S19")
def test_pad_equal_to_eos_and_an_answer_that_is_only_eos(case, letters_folder) -> None:
    case.tasks({"prompt": "a"})
    case.answers([[4, 5, 0], [0]])
    case.scores(1.0, 0.0)
    runs = []
    for pad in (0, 3):
        overrides = ["model=hub", f"model.path={letters_folder(eos_ids=[0], eos=0, pad=pad)}", "algorithm.num_generations=2"]
        runs.append(case.train(*overrides, where=f"pad{pad}"))
    same, other = runs
    assert lengths(same.metrics()) == lengths(other.metrics())
    assert {name: lengths(same.metrics())[name] for name in ("min_length", "max_length", "clipped_ratio")} == {
        "min_length": 1.0,
        "max_length": 3.0,
        "clipped_ratio": 0.0,
    }
    assert same.metrics()["loss"] == pytest.approx(-(0.5 * 3 - 0.5 * 1) / 4, abs=1e-6), "dapo divides by 4"
    assert same.json("summary.json")["tokens"]["trained"] == 4
    assert same.metrics()["loss"] == other.metrics()["loss"] and same.metrics()["grad_norm"] == other.metrics()["grad_norm"] > 0
    weights = other.weights()
    assert all((value == weights[name]).all() for name, value in same.weights().items())


@pytest.mark.cases("S20")
@pytest.mark.rows("GRPO-082", "GRPO-046")
def test_a_stop_string_ends_an_answer_and_is_trained(case) -> None:
    words = ["<pad>", "<answer>", "5", "</ans", "wer>", "z"]
    follows = {5: 1, 1: 2, 2: 3, 3: 4}
    table = [[1.0 if follows.get(last) == token else 0.0 for token in range(6)] if last in follows else [1 / 6] * 6 for last in range(6)]
    case.tasks({"prompt": "z"})
    case.answers([{"ids": [1, 2, 3, 4], "logprobs": [0.0] * 4, "finish": "stop"}] * 2)
    case.scores(1.0, 0.0)
    overrides = [*case.table(probabilities=table, words=words), "algorithm.num_generations=2", "loss.mask_truncated_completions=true"]
    overrides.append('generation.generation_kwargs={stop: ["</answer>"]}')
    for generator in ("scripted", "native"):
        run = case.train(*overrides, generator=generator, where=generator)
        rollouts = run.rollouts()
        assert rollouts["ids"] == [[1, 2, 3, 4]] * 2 and rollouts["finish"] == ["stop"] * 2
        assert rollouts["completion"] == ["<answer>5</answer>"] * 2
        assert run.metrics()["completions/clipped_ratio"] == 0.0 and run.json("summary.json")["tokens"]["trained"] == 8
