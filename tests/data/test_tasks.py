"""What a task must look like, fingerprints, and the procedural data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlexp.config.data import AdditionDataConfig, ReasoningGymDataConfig
from rlexp.config.errors import UserError
from rlexp.data import addition, reasoning_gym
from rlexp.data.checks import check_task
from rlexp.data.tasks import seed_of, task_data

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.rows("GRPO-104")
def test_prompts_may_be_text_or_messages() -> None:
    data = task_data([{"prompt": "a", "answer": "1"}, {"prompt": MESSAGES, "level": 2}], [])
    assert data.columns == {"answer", "level"}
    assert data.sized and len(data.train) == 2


@pytest.mark.rows("GRPO-104", "GRPO-259")
def test_a_task_without_prompt_names_the_columns() -> None:
    with pytest.raises(UserError, match=r"training task 1 has no prompt \(columns: answer, question\): set data\.prompt_column"):
        task_data([{"prompt": "a"}, {"question": "b", "answer": "1"}], [])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (3, "must be text or a list of messages, not int"),
        ([], "not an empty list"),
        (["hi"], "role and content"),
        ([{"content": "hi"}], "role and content"),
        ([{"role": "user"}], "role and content"),
    ],
)
def test_wrong_prompts(prompt: object, message: str) -> None:
    with pytest.raises(UserError, match=f"held-out task 7.*{message}"):
        check_task({"prompt": prompt}, "held-out task 7")


@pytest.mark.parametrize("name", ["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"])
def test_columns_named_like_reward_arguments(name: str) -> None:
    with pytest.raises(UserError, match=f"column '{name}'.*data.columns"):
        check_task({"prompt": "a", name: 1}, "training task 0")


def test_fingerprint_is_of_the_contents() -> None:
    base = [{"prompt": "a", "x": {"k": (1, 2.5), "m": None}}, {"prompt": "b", "x": {"k": "z"}}]
    same = [{"x": {"m": None, "k": [1, 2.5]}, "prompt": "a"}, {"prompt": "b", "x": {"k": "z"}}]
    print_of = lambda train, held_out=(): task_data(train, list(held_out)).fingerprint  # noqa: E731
    assert print_of(base) == print_of(same)
    assert print_of(base) != print_of(base[::-1])
    assert print_of(base) != print_of(base[:1], base[1:])
    assert print_of(base) != print_of([base[0], {"prompt": "b", "x": {"k": "y"}}])


def test_fingerprint_does_not_depend_on_the_process() -> None:
    code = "from rlexp.data.tasks import task_data; print(task_data([{'prompt': 'a', 'x': {'q', 'w', 'e', 'r'}}], []).fingerprint)"
    prints = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout
        for seed in ("1", "2")
    }
    assert len(prints) == 1


def test_seed_of_the_data() -> None:
    assert seed_of(AdditionDataConfig(), 42) == 42
    assert seed_of(AdditionDataConfig(seed=0), 42) == 0


def questions(tasks) -> list[str]:
    return [task["prompt"] if isinstance(task["prompt"], str) else task["prompt"][0]["content"] for task in tasks]


def test_addition_is_right_and_disjoint() -> None:
    data = addition.load(AdditionDataConfig(digits=2, size=500, eval_size=100), seed=1)
    train, held_out = questions(data.train), questions(data.held_out)
    assert (len(set(train)), len(set(held_out)), set(train) & set(held_out)) == (500, 100, set())
    for task in [*data.train, *data.held_out]:
        a, b = task["prompt"][0]["content"].removesuffix("=").split("+")
        assert int(a) < 100 and int(b) < 100 and task["answer"] == str(int(a) + int(b))
    assert data.columns == {"answer"}
    again = addition.load(AdditionDataConfig(digits=2, size=20, eval_size=100), seed=1)
    assert questions(again.held_out) == held_out  # whatever the size of the training part
    assert questions(addition.load(AdditionDataConfig(digits=2, size=20, eval_size=100), seed=2).held_out) != held_out


def test_addition_uses_all_that_exist() -> None:
    data = addition.load(AdditionDataConfig(digits=1, size=2000, eval_size=30, conversational=False), seed=3)
    assert sorted(questions([*data.train, *data.held_out])) == sorted(f"{a}+{b}=" for a in range(10) for b in range(10))
    assert len(data.train) == 70
    with pytest.raises(UserError, match=r"data.eval_size=100 takes all 100"):
        addition.load(AdditionDataConfig(digits=1, eval_size=100), seed=3)
    assert len(addition.load(AdditionDataConfig(digits=6, size=50, eval_size=10), seed=3).train) == 50


def gym(**changes) -> ReasoningGymDataConfig:
    given = {"params": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, "size": 200, "eval_size": 20}
    return ReasoningGymDataConfig(**{**given, **changes})


def test_reasoning_gym_tasks() -> None:
    data = reasoning_gym.load(gym(suffix=" Number only."), seed=1)
    train, held_out = questions(data.train), questions(data.held_out)
    assert len(set(held_out)) == 20 and not set(train) & set(held_out) and 150 < len(train) <= 200
    task = data.train[0]
    assert task["prompt"][0]["content"] == task["entry"]["question"] + " Number only."
    assert task["answer"] == task["entry"]["answer"]
    assert task["gym_dataset"]["name"] == "basic_arithmetic" and task["gym_dataset"]["params"]["max_terms"] == 2
    assert data.fingerprint == reasoning_gym.load(gym(suffix=" Number only."), seed=1).fingerprint
    assert data.fingerprint != reasoning_gym.load(gym(suffix=" Number only."), seed=2).fingerprint
    assert isinstance(reasoning_gym.load(gym(conversational=False, size=5), seed=1).train[0]["prompt"], str)


def test_reasoning_gym_with_few_questions() -> None:
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "operators": ["+"], "allow_parentheses": False}
    data = reasoning_gym.load(gym(params=params, eval_size=5, size=50), seed=1)
    assert len(data.held_out) == 5
    with pytest.raises(UserError, match=r"data.eval_size=500 takes all questions"):
        reasoning_gym.load(gym(params=params, eval_size=500, size=50), seed=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "basic_aritmetic"}, "data.dataset=basic_aritmetic.*did you mean basic_arithmetic"),
        ({"params": {"max_term": 3}}, "data.params=.*refused by reasoning-gym's basic_arithmetic.*max_term"),
        ({"params": {"min_terms": 5, "max_terms": 2}}, "data.params=.*refused"),
        ({"params": {"seed": 5}}, "data.params may not set seed"),
    ],
)
def test_reasoning_gym_refusals(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        reasoning_gym.load(gym(**changes), seed=1)


def test_reasoning_gym_without_the_package() -> None:
    code = """
import sys
sys.modules["reasoning_gym"] = None
from rlexp.config.data import ReasoningGymDataConfig
from rlexp.data.reasoning_gym import load
load(ReasoningGymDataConfig(), seed=1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UserError: data=reasoning_gym needs the reasoning-gym package: pip install 'rlexp[gym]'" in done.stderr
