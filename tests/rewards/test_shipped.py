"""The rewards that come with rlexp, called through the runner."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
import reasoning_gym
from reward_runs import STATE, rollouts, says, score, values

from rlexp.components import register_all
from rlexp.config.errors import UserError
from rlexp.config.reward import (
    AccuracyRewardConfig,
    CustomRewardConfig,
    ExactMatchRewardConfig,
    OverlongRewardConfig,
    ReasoningGymRewardConfig,
    RewardConfig,
    ThinkFormatRewardConfig,
)
from rlexp.rewards import accuracy as accuracy_module
from rlexp.rewards.accuracy import Accuracy
from rlexp.rewards.custom import custom
from rlexp.rewards.exact_match import ExactMatch
from rlexp.rewards.overlong import Overlong
from rlexp.rewards.reasoning_gym import ReasoningGymScore
from rlexp.rewards.runner import RewardRunner
from rlexp.rewards.scorer_process import ScorerProcess, TookTooLong
from rlexp.rewards.terms import Term
from rlexp.rewards.think_format import ThinkFormat


@pytest.mark.parametrize(
    ("changes", "completions", "answers", "right"),
    [
        ({}, [" 46\n", "47", "46 ", ""], ["46", "46", 46, "46"], [1.0, 0.0, 1.0, 0.0]),
        ({"column": "gold"}, ["a", "b"], ["a", None], [1.0, None]),
        ({"ignore_case": True}, ["YES", "Straße"], ["yes", "STRASSE"], [1.0, 1.0]),
        ({"pattern": r"<answer>(.*?)</answer>"}, ["x <answer> 5\n</answer> <answer>6</answer>", "5"], ["5", "5"], [1.0, 0.0]),
        ({"pattern": r"a(b)?"}, ["a"], [""], [0.0]),
    ],
)
def test_exact_match(changes: dict, completions: list, answers: list, right: list) -> None:
    column = changes.get("column", "answer")
    for form in (completions, says(*completions)):
        made = rollouts(form, **{column: answers})
        score([Term("exact_match", ExactMatch(ExactMatchRewardConfig(**changes)))], made)
        assert values(made, "exact_match") == right


def test_exact_match_refusals() -> None:
    for pattern, message in (("(", "is no regular expression"), ("a", "needs a group")):
        with pytest.raises(UserError, match=f"pattern='.*' {message}"):
            ExactMatch(ExactMatchRewardConfig(pattern=pattern))
    with pytest.raises(UserError, match="asks for 'gold'"):
        score([Term("exact_match", ExactMatch(ExactMatchRewardConfig(column="gold")))], rollouts(["a"], answer=["a"]))


@pytest.mark.cases("S22")
@pytest.mark.rows("GRPO-127")
@pytest.mark.parametrize(
    ("prompt", "completion", "right"),
    [
        ("<user>2+3?\n<think>\n", "2+3 is 5.\n</think>\n5", 1.0),
        ("<user>2+3?\n<think>\n", "2+3 is 5. 5", 0.0),
        ("<user>2+3?\n", "2+3 is 5.\n</think>\n5", 0.0),
        ("<user>2+3?\n", "2+3 is 5. 5", 0.0),
        ("<user>2+3?\n", "<think>2+3\nis 5</think>5", 1.0),
        ("<user>2+3?\n", "<think></think>", 1.0),
        ("<user>2+3?\n", " <think>a</think>5", 0.0),
        ("<user>2+3?\n", "<think>a<think>b</think>5", 0.0),
        ("<user>2+3?\n", "<think>a</think>5<think>", 0.0),
        ("<user>2+3?\n", "<think>a</think", 0.0),
        ("<user>2+3?\n<think>\n", "<think>a</think>5", 0.0),
        ("Put your thoughts after <think>, please.\n", "a</think>5", 0.0),
    ],
)
def test_think_format(prompt: str, completion: str, right: float) -> None:
    for form in ([completion], says(completion)):
        made = rollouts(form, prompt_text=prompt)
        score([Term("think_format", ThinkFormat(ThinkFormatRewardConfig()))], made)
        assert values(made, "think_format") == [right]


@pytest.mark.cases("S34")
@pytest.mark.rows("GRPO-127")
def test_overlong() -> None:
    made = rollouts(["a"] * 6, ids=[[1] * length for length in (0, 15, 16, 17, 20, 21)])
    score([Term("overlong", Overlong(OverlongRewardConfig(max_length=20, buffer=5)))], made)
    assert values(made, "overlong") == [0.0, 0.0, -0.2, -0.4, -1.0, -1.0]
    made = rollouts(["a"], ids=[[1] * 90])
    score([Term("overlong", Overlong(OverlongRewardConfig(max_length=100, buffer=20)))], made)
    assert values(made, "overlong") == [-0.5]
    Overlong(OverlongRewardConfig(max_length=20, buffer=20))
    for config, message in (
        (OverlongRewardConfig(max_length=20, buffer=25), "buffer=25 is larger than max_length=20"),
        (OverlongRewardConfig(), "max_length is not set"),
    ):
        with pytest.raises(UserError, match=message):
            Overlong(config)


@pytest.fixture(scope="module")
def math_reward() -> Accuracy:
    pytest.importorskip("math_verify")
    return Accuracy(AccuracyRewardConfig())


@pytest.mark.cases("S33")
@pytest.mark.rows("GRPO-126")
def test_accuracy(math_reward: Accuracy) -> None:
    golds = ["no number here", "no number here", r"\frac{1}{2}", r"\frac{1}{2}", "5", "5", None]
    answers = [r"\boxed{4}", r"\boxed{5}", r"\boxed{0.5}", r"\boxed{2}", "5", r"first $4$, then \boxed{5}", r"\boxed{5}"]
    for form in (answers, says(*answers)):
        made = rollouts(form, solution=golds)
        assert score([Term("accuracy", math_reward)], made) == {}
        assert values(made, "accuracy") == [None, None, 1.0, 0.0, 0.0, 1.0, None]
    assert made[2].extra["solution"] == r"\frac{1}{2}" and made[2].extra["gold_parsed"].startswith("[1/2") and made[2].extra["answer_parsed"].startswith("[0.5")
    assert made[0].extra["gold_parsed"] == ""


def test_an_endless_computation_scores_zero(math_reward: Accuracy, monkeypatch: pytest.MonkeyPatch) -> None:
    """9^9^9 holds the interpreter for hours inside one C call."""
    monkeypatch.setattr(math_reward, "_process", ScorerProcess("rlexp.rewards.accuracy:compare", 1.5))
    made = rollouts([r"\boxed{5}", r"\boxed{9^{9^{9}}}", r"\boxed{5}"], solution=["5"] * 3)
    began = time.monotonic()
    metrics = score([Term("accuracy", math_reward)], made)
    assert time.monotonic() - began < 15
    assert values(made, "accuracy") == [1.0, 0.0, 1.0] and metrics == {"nondeterminism/accuracy_timeout": (1.0, 1.0)}


def test_accuracy_names_its_column() -> None:
    with pytest.raises(UserError, match=r"asks for 'solution'.*columns: answer"):
        score([Term("accuracy", Accuracy(AccuracyRewardConfig()))], rollouts(["a"], answer=["5"]))
    assert accuracy_module.SECONDS_PER_ANSWER == 5.0


@pytest.mark.parametrize(
    ("package", "reward", "extra"),
    [
        ("math_verify", "accuracy:Accuracy(config.AccuracyRewardConfig())", "math"),
        ("reasoning_gym", "reasoning_gym:ReasoningGymScore(config.ReasoningGymRewardConfig())", "gym"),
    ],
)
def test_missing_packages(package: str, reward: str, extra: str) -> None:
    module, call = reward.split(":")
    code = f"""
import importlib.util
find, importlib.util.find_spec = importlib.util.find_spec, lambda name, *rest: None if name == "{package}" else find(name, *rest)
from rlexp.config import reward as config
from rlexp.rewards.{module} import {call.split("(")[0]}
{call}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"needs the {package.replace('_', '-')} package: pip install 'rlexp[{extra}]'" in done.stderr


def test_the_scorers_process_ends_with_its_owner() -> None:
    code = """
from rlexp.rewards.scorer_process import ScorerProcess
scorer = ScorerProcess("operator:add", 5.0)
assert scorer.call(2, 3) == 5
print(scorer._process.pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_a_scorer_that_dies_is_started_again() -> None:
    scorer = ScorerProcess("os:_exit", 5.0)
    for _ in range(2):
        with pytest.raises(TookTooLong):
            scorer.call(3)
    with pytest.raises(RuntimeError, match="did not start"):
        ScorerProcess("no_such_module:f", 5.0).call()


@pytest.fixture(scope="module")
def gym_process() -> ScorerProcess:
    return ScorerProcess("rlexp.rewards.reasoning_gym:score_answer", 5.0)


def gym_reward(process: ScorerProcess, **changes) -> ReasoningGymScore:
    """With a process that the tests share, because it takes a second to start."""
    reward = ReasoningGymScore(ReasoningGymRewardConfig(**changes))
    reward._process = process
    return reward


def test_reasoning_gym_scores(gym_process: ScorerProcess) -> None:
    params = {"min_value": 10, "max_value": 20}
    tasks = reasoning_gym.create_dataset("prime_factorization", size=3, seed=1, **params)
    items = [tasks[number] for number in range(3)]
    dataset = {"name": "prime_factorization", "params": params}
    made = rollouts([" " + items[0]["answer"], "hello", "Answer: " + items[2]["answer"]], entry=items, gym_dataset=[dataset] * 3)
    metrics = score([Term("gym", gym_reward(gym_process, pattern=r"Answer: (.*)"))], made)
    assert values(made, "gym") == [1.0, 0.0, 1.0] and metrics == {"reasoning_gym/unreadable_answers": (1.0, 3.0)}
    with pytest.raises(UserError, match="asks for 'entry' and 'gym_dataset'"):
        score([Term("gym", gym_reward(gym_process))], rollouts(["a"], answer=["5"]))


def test_reasoning_gym_logs_feedback(gym_process: ScorerProcess) -> None:
    task = reasoning_gym.create_dataset("prime_factorization", size=1, seed=1, min_value=10, max_value=20)[0]
    dataset = {"name": "prime_factorization", "params": {"min_value": 10, "max_value": 20}}
    made = rollouts([task["answer"], "hello", "x"], entry=[task, task, None], gym_dataset=[dataset] * 3)
    score([Term("gym", gym_reward(gym_process, feedback=True))], made)
    assert [rollout.extra["feedback"] for rollout in made] == [None, f"Your answer was 'hello', which is wrong. The right answer is {task['answer']}.", None]


def test_reasoning_gym_scores_with_the_parameters_of_the_data(gym_process: ScorerProcess) -> None:
    """puzzle24 refuses numbers above its max_value."""
    item = {"answer": "", "metadata": {}, "question": ""}
    datasets = [{"name": "puzzle24", "params": {"min_value": 1, "max_value": most}} for most in (9, 5)]
    made = rollouts(["6 + 6 + 6 + 6"] * 2, entry=[item] * 2, gym_dataset=datasets)
    score([Term("gym", gym_reward(gym_process))], made)
    assert values(made, "gym") == [1.0, 0.01]
    with pytest.raises(UserError, match=r"scorer of .*'nothing'.* cannot be made: ValueError"):
        score([Term("gym", gym_reward(gym_process))], rollouts(["a"], entry=[item], gym_dataset=[{"name": "nothing", "params": {}}]))


@pytest.fixture
def my_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "neighbour_of_rewards.py").write_text("FACTOR = 2.0\n")
    file = tmp_path / "my_rewards.py"
    file.write_text(
        """
from neighbour_of_rewards import FACTOR
NUMBER = 3
class Box:
    pass
def length(completions, cap=100):
    return [FACTOR * min(len(completion), cap) for completion in completions]
class Judge:
    def __init__(self, right):
        self.right = right
    async def __call__(self, completions):
        return [float(completion == self.right) for completion in completions]
"""
    )
    return file


def configured(**terms: CustomRewardConfig) -> RewardRunner:
    register_all()
    return RewardRunner(RewardConfig(terms=dict(terms)))


@pytest.mark.rows("GRPO-115")
def test_custom_functions(my_rewards: Path) -> None:
    runner = configured(
        short=CustomRewardConfig(path="my_rewards.py:length", kwargs={"cap": 3}),
        long=CustomRewardConfig(path=f"{my_rewards}:length", weight=0.5),
        judge=CustomRewardConfig(path="my_rewards.py:Judge", kwargs={"right": "abcd"}),
    )
    made = rollouts(["abcd", "a"])
    asyncio.run(runner.score(made, STATE))
    assert [rollout.rewards for rollout in made] == [{"short": 6.0, "long": 8.0, "judge": 1.0}, {"short": 2.0, "long": 2.0, "judge": 0.0}]
    assert made[0].reward == 11.0


def test_custom_function_of_a_module(my_rewards: Path) -> None:
    try:
        assert custom(CustomRewardConfig(path="my_rewards:length"))(["abc"]) == [6.0]
    finally:
        sys.modules.pop("my_rewards", None)
    assert custom(CustomRewardConfig(path="os.path:basename"))("a/b") == "b"


@pytest.mark.parametrize(
    ("path", "kwargs", "message"),
    [
        ("my_rewards.py", {}, "must be FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("other.py:length", {}, "there is no file other.py"),
        ("my_rewards.py:lenght", {}, "there is no function lenght in my_rewards.py; did you mean length?"),
        ("my_rewards.py:zzz", {}, "it has Box, Judge, length"),
        ("my_rewards.py:NUMBER", {}, "NUMBER is no function but int"),
        ("my_rewards.py:length", {"capp": 3}, "takes no keyword argument capp (it takes cap, completions)"),
        ("my_rewards.py:Judge", {}, "making it with kwargs={} raised TypeError"),
        ("my_rewards.py:Box", {}, "its objects cannot be called"),
        ("no_such_package.rewards:f", {}, "there is no module no_such_package"),
        ("wrong.py:f", {}, "importing it raised SyntaxError"),
        ("needy.py:f", {}, "importing it raised ModuleNotFoundError: No module named 'not_there'"),
        ("needy:f", {}, "importing needy raised ModuleNotFoundError: No module named 'not_there'"),
    ],
)
def test_custom_refusals(my_rewards: Path, path: str, kwargs: dict, message: str) -> None:
    (my_rewards.parent / "wrong.py").write_text("def f(:\n")
    (my_rewards.parent / "needy.py").write_text("import not_there\n")
    with pytest.raises(UserError) as caught:
        configured(mine=CustomRewardConfig(path=path, kwargs=kwargs))
    assert message in str(caught.value) and str(caught.value).startswith("reward.terms.mine: ")
