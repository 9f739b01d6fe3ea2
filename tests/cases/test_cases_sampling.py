"""What reaches the sampler: seed, temperature, prompts with one BOS, and nothing from the model's folder."""

from __future__ import annotations

import pytest
from user_cases import one_bos

BACKENDS = ["native", "transformers"]
DIGITS = "def score(completions):\n    return [float(sum(c.isdigit() for c in completion)) for completion in completions]\n"
TASKS = [{"prompt": f"{a}+{b}="} for a, b in ((1, 2), (3, 4), (5, 6), (7, 8))]


@pytest.mark.cases("S24")
@pytest.mark.rows("GRPO-097")
def test_the_seed_reaches_the_sampler_and_only_the_sampler(case, model_folder) -> None:
    case.tasks(*TASKS)
    case.rewards(DIGITS)
    overrides = ["model=hub", f"model.path={model_folder}", "data.shuffle=true", "data.seed=5", "rollout.prompts_per_batch=4", "algorithm.num_generations=2"]
    first, again, other = (
        case.train(*overrides, f"run.seed={seed}", generator="native", where=where).rollouts() for seed, where in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert first == again
    assert first["prompt"] == other["prompt"] != sorted(first["prompt"])
    assert all(mine != theirs for mine, theirs in zip(first["ids"], other["ids"], strict=True))


@pytest.mark.cases("S25")
def test_two_greedy_evaluations_of_equal_weights_give_the_same_text(case, model_folder) -> None:
    case.tasks(*TASKS)
    case.rewards(DIGITS)
    overrides = ["model=hub", f"model.path={model_folder}", "algorithm.num_generations=2", "optimizer.learning_rate=0", "trainer.max_steps=2"]
    evaluation = ["evaluation=default", "data.eval_size=2", "evaluation.steps=1", "evaluation.temperature=0", "evaluation.num_generations=2"]
    run = case.train(*overrides, *evaluation, generator="native")
    start, first, second = (run.rollouts(step, "eval") for step in (0, 1, 2))
    assert start["completion"] == first["completion"] == second["completion"] and len(start["completion"]) == 2
    assert start["ids"] == first["ids"] == second["ids"]
    assert run.rollouts(1)["ids"][0] != run.rollouts(1)["ids"][1], "training samples"
    assert all(line["pass@1"] == line["pass@2"] == line["accuracy"] for line in run.lines("eval")), "at temperature 0 every try is the same"


@pytest.mark.cases("S26")
@pytest.mark.rows("GRPO-077", "GRPO-079")
@pytest.mark.parametrize("generator", BACKENDS)
def test_a_model_folder_smuggles_in_no_sampling_settings(generator: str, case, letters_folder) -> None:
    smuggled = {"temperature": 0.1, "top_k": 1, "top_p": 0.5, "repetition_penalty": 1.3, "do_sample": True}
    folder = letters_folder(letters="pabcdefg", eos_ids=[0, 5], eos=0, pad=1, uniform=True, **smuggled)
    case.tasks({"prompt": "a"})
    case.rewards("def score(completions):\n    return [1.0] * len(completions)\n")
    overrides = ["model=hub", f"model.path={folder}", "algorithm.num_generations=400", "rollout.max_completion_length=1"]
    rollouts = case.train(*overrides, generator=generator).rollouts()
    assert {ids[0] for ids in rollouts["ids"]} == set(range(8)) and len(rollouts["ids"]) == 400
    ended = {ids[0] for ids, finish in zip(rollouts["ids"], rollouts["finish"], strict=True) if finish == "eos"}
    assert ended == {0, 5}, "the EOS ids are what the folder's generation config is read for"


@pytest.mark.cases("S21")
@pytest.mark.parametrize("generator", BACKENDS)
def test_exactly_one_bos(generator: str, case, letters_folder) -> None:
    one_bos(case, letters_folder, generator)
