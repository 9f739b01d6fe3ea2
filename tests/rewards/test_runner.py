"""The calling convention of rewards: rows GRPO-115 to GRPO-124 and the examples GRPO-128 to GRPO-134."""

from __future__ import annotations

import asyncio
import functools
import math
import re

import numpy as np
import pytest
from reward_runs import STATE, rollouts, runner_of, says, score, values

from rlexp.components import register_all
from rlexp.config.errors import UserError
from rlexp.config.generation import SyncRolloutConfig
from rlexp.config.reward import ExactMatchRewardConfig, OverlongRewardConfig, RewardConfig
from rlexp.rewards.runner import RewardRunner
from rlexp.rewards.terms import Term, terms_of


@pytest.mark.cases("S01")
@pytest.mark.rows("GRPO-020", "GRPO-123", "GRPO-124")
def test_none_is_left_out_of_the_total(caplog: pytest.LogCaptureFixture) -> None:
    made = rollouts(["a"] * 4)
    score([Term("f", lambda completions: [1, None, 0, None]), Term("g", lambda completions: [None, None, 1, None], 0.5)], made)
    assert [made[0].reward, made[2].reward] == [1.0, 0.5] and math.isnan(made[1].reward) and math.isnan(made[3].reward)
    assert made[0].rewards == {"f": 1.0, "g": None}
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and "(0, 1, 'policy')/0, (0, 3, 'policy')/0" in warnings[0] and "2 rollouts" in warnings[0]


@pytest.mark.cases("S06")
@pytest.mark.rows("GRPO-123", "GRPO-221", "GRPO-222", "GRPO-257")
def test_weighted_total() -> None:
    made = rollouts(["a"] * 4)
    score([lambda completions: [1, 0, 1, 1], lambda completions: [0, 1, 1, 0]], made, weights=[0.7, 0.3])
    totals = [rollout.reward for rollout in made]
    assert np.mean(totals) == pytest.approx(0.675, abs=1e-12)
    assert np.std(totals, ddof=1) == pytest.approx(0.287228, abs=1e-6)
    with pytest.raises(UserError, match="1 reward weights for 2 reward functions"):
        terms_of([len, len], [1.0])


def test_the_order_of_terms_is_that_of_the_config() -> None:
    async def second(completions):
        return [2.0]

    made = rollouts(["a"])
    score([lambda completions: [1.0], second, lambda completions: [3.0]], made)
    assert list(made[0].rewards.items()) == [("lambda", 1.0), ("second", 2.0), ("lambda_2", 3.0)]


@pytest.mark.rows("GRPO-115", "GRPO-117", "GRPO-120")
def test_everything_a_reward_can_ask_for() -> None:
    seen = {}

    def everything(**kwargs):
        seen.update(kwargs)
        return [0.0, 0.0]

    made = rollouts(["x", "y"], ids=[[1, 2], [3]], prompts=["p", "q"], prompt_text="rendered", answer=["1", "2"], level=[3, None])
    score([everything], made)
    assert set(seen) == {"prompts", "completions", "completion_ids", "prompt_texts", "trainer_state", "log_extra", "log_metric", "answer", "level"}
    assert (seen["prompts"], seen["completions"], seen["completion_ids"]) == (["p", "q"], ["x", "y"], [[1, 2], [3]])
    assert (seen["answer"], seen["level"], seen["prompt_texts"]) == (["1", "2"], [3, None], ["rendered"] * 2)
    assert seen["trainer_state"] == STATE


@pytest.mark.rows("GRPO-118", "GRPO-119")
def test_text_and_messages() -> None:
    made = rollouts(says("b"), prompts=[[{"role": "user", "content": "a"}]])
    score([lambda prompts, completions: [float(prompts[0][0]["content"] == "a" and completions[0][0] == {"role": "assistant", "content": "b"})]], made)
    assert made[0].reward == 1.0


@pytest.mark.cases("S32")
@pytest.mark.rows("MA-025")
def test_only_what_is_named_is_given() -> None:
    calls = []

    def one(completions):
        calls.append({"completions": completions})
        return [1.0]

    def two(prompts, completions):
        calls.append({"prompts": prompts, "completions": completions})
        return [1.0]

    def three(completions, answer):
        calls.append({"completions": completions, "answer": answer})
        return [1.0]

    def four(completions, **kwargs):
        calls.append(kwargs)
        return [1.0]

    def positional(completions, /, answer, *, colour="red"):
        calls.append({"colour": colour, "answer": answer})
        return [1.0]

    score([one, two, three, four, positional, functools.partial(positional, colour="blue")], rollouts(["c"], answer=["a"]))
    assert calls[0] == {"completions": ["c"]}
    assert calls[1] == {"prompts": ["p"], "completions": ["c"]}
    assert calls[2] == {"completions": ["c"], "answer": ["a"]}
    assert "answer" in calls[3] and "prompts" in calls[3] and "completions" not in calls[3]
    assert calls[4:] == [{"colour": "red", "answer": ["a"]}, {"colour": "blue", "answer": ["a"]}]
    score([positional], rollouts(["c"], answer=["a"], colour=["green"]))
    assert calls[-1]["colour"] == ["green"]  # an optional parameter gets its column when there is one
    score([functools.partial(positional, colour="blue")], rollouts(["c"], answer=["a"], colour=["green"]))
    assert calls[-1]["colour"] == "blue"  # what a partial has bound stays


@pytest.mark.cases("S32")
@pytest.mark.rows("MA-025", "GRPO-117")
def test_a_missing_column_is_found_at_start() -> None:
    runner = runner_of([Term("r", lambda completions, colour: [0.0]), Term("s", lambda prompt: [0.0])])
    with pytest.raises(UserError, match=r"reward.terms.r asks for 'colour', which is no column .*\(columns: answer, level;") as caught:
        runner.check_columns({"prompt", "answer", "level"})
    assert "reward.terms.s asks for 'prompt', which is no column of the dataset: did you mean prompts?" in str(caught.value)
    runner = runner_of([Term("r", lambda completions, colour=None: [0.0])])
    runner.check_columns({"answer"})


def test_a_column_that_only_some_tasks_have() -> None:
    seen = []
    runner = runner_of([lambda tests: seen.append(tests) or [0.0] * len(tests)])
    runner.check_columns({"tests", "answer"})
    asyncio.run(runner.score(rollouts(["a", "b"], answer=["1", "2"]), STATE))
    assert seen == [[None, None]]


def test_unreadable_parameters() -> None:
    with pytest.raises(UserError, match=r"parameters of .* cannot be read"):
        runner_of([Term("x", max)])
    with pytest.raises(UserError, match="no reward is chosen"):
        RewardRunner(RewardConfig())


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("returned", "got"), [([1.0], "1 values"), ([1.0] * 5, "5 values"), (None, "NoneType"), (1.0, "float"), ("abcd", "str"), ({}, "dict")])
@pytest.mark.cases("S30")
@pytest.mark.rows("GRPO-258")
def test_wrong_length(returned, got: str, asynchronous: bool) -> None:
    def judge(completions):
        return returned

    async def async_judge(completions):
        return returned

    for on_error in ("stop", "none"):  # a broken contract is never scored over
        with pytest.raises(ValueError, match=f"reward 'judge' returned {got}, expected 4") as caught:
            score([Term("judge", async_judge if asynchronous else judge)], rollouts(["a"] * 4), on_error=on_error)
        assert isinstance(caught.value, UserError) and "reward.terms.judge" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [("1", "returned '1' (str) for completion 1"), (math.nan, "returned nan for completion 1"), (math.inf, "returned inf"), ([1.0], "(list)")],
)
def test_wrong_values(value, message: str) -> None:
    with pytest.raises(UserError, match="reward 'judge' returned") as caught:
        score([Term("judge", lambda completions: [0.0, value])], rollouts(["a", "b"]))
    assert message in str(caught.value)


def test_numbers_of_other_libraries() -> None:
    made = rollouts(["a", "b", "c"])
    score([Term("list", lambda completions: [True, np.float32(0.5), np.int64(2)]), Term("array", lambda completions: np.array([1, 2, 3]))], made)
    assert values(made, "list") == [1.0, 0.5, 2.0] and values(made, "array") == [1.0, 2.0, 3.0]
    assert all(type(value) is float for value in values(made, "list"))


@pytest.mark.cases("S31")
def test_names_of_functions_without_a_name() -> None:
    def length(completions, cap=0):
        return [0.0]

    class Judge:
        def __call__(self, completions):
            return [0.0]

    functions = [
        functools.partial(length, cap=3),
        functools.partial(length, cap=9),
        Judge(),
        lambda completions: [0.0],
        functools.partial(functools.partial(length), cap=1),
    ]
    assert [term.name for term in terms_of(functions)] == ["length", "length_2", "Judge", "lambda", "length_3"]
    made = rollouts(["a"])
    score(functions, made)
    assert list(made[0].rewards) == ["length", "length_2", "Judge", "lambda", "length_3"]


@pytest.mark.cases("S31", "S34")
def test_terms_of_a_config_are_named_by_their_keys() -> None:
    register_all()
    terms = {"near": ExactMatchRewardConfig(ignore_case=True, weight=0.5), "exact": ExactMatchRewardConfig(), "long": OverlongRewardConfig(buffer=4)}
    runner = RewardRunner(RewardConfig(terms=terms), rollout=SyncRolloutConfig(max_completion_length=8))
    runner.check_columns({"answer"})
    made = rollouts(["Yes", "no"], ids=[[1] * 8, [1] * 5], answer=["yes", "no"])
    asyncio.run(runner.score(made, STATE))
    assert [rollout.rewards for rollout in made] == [{"near": 1.0, "exact": 0.0, "long": -1.0}, {"near": 1.0, "exact": 1.0, "long": -0.25}]
    assert [rollout.reward for rollout in made] == [-0.5, 1.25]
    with pytest.raises(UserError, match=r"reward.terms.long: buffer=4 is larger than max_length=3"):
        RewardRunner(RewardConfig(terms=terms), rollout=SyncRolloutConfig(max_completion_length=3))


@pytest.mark.cases("S35")
def test_edits_of_one_reward_are_seen_nowhere() -> None:
    shared = [{"role": "user", "content": "hi"}]

    def vandal(prompts, completions, completion_ids, answer):
        for prompt, completion, ids, entry in zip(prompts, completions, completion_ids, answer, strict=True):
            prompt.append({"role": "assistant", "content": "X"})
            completion[0]["content"] = "X"
            ids.clear()
            entry["text"] = entry["text"].upper()
        return [float(len(prompt)) for prompt in prompts]

    def count(prompts, answer):
        return [float(len(prompt)) + 10 * (entry["text"] == "a") for prompt, entry in zip(prompts, answer, strict=True)]

    task_answer = {"text": "a"}
    made = rollouts(says("b", "c"), prompts=[shared, shared], answer=[task_answer, task_answer])
    for _ in range(2):
        score([vandal, count], made)
        assert values(made, "vandal") == [2.0, 2.0]  # rollouts of one task do not share their prompt either
        assert values(made, "count") == [11.0, 11.0]
    assert shared == [{"role": "user", "content": "hi"}] and task_answer == {"text": "a"}
    assert [rollout.completion for rollout in made] == says("b", "c") and made[0].length == 2


@pytest.mark.cases("S23")
@pytest.mark.parametrize("messages", [False, True])
def test_special_tokens(messages: bool) -> None:
    def text(completions, completion_ids):
        assert completion_ids == [[12, 4, 13, 5, 0]]
        return [float((completions[0][0]["content"] if messages else completions[0]) == "<think>a</think>b")]

    made = rollouts(says("ab") if messages else ["ab"], ids=[[12, 4, 13, 5, 0]], special=["<think>a</think>b"])
    score([Term("plain", text), Term("special", text, special_tokens=True)], made)
    assert made[0].rewards == {"plain": 0.0, "special": 1.0}


@pytest.mark.rows("GRPO-128")
def test_example_token_length() -> None:
    made = rollouts(["a", "b"], ids=[[6303, 13], [304, 279, 12884, 13]])
    score([Term("length", lambda completion_ids, **kwargs: [float(len(ids)) for ids in completion_ids])], made)
    assert values(made, "length") == [2.0, 4.0]


@pytest.mark.rows("GRPO-129")
def test_example_characters() -> None:
    made = rollouts([" blue.", " in the sky."])
    score([Term("length", lambda completions, **kwargs: [float(len(completion)) for completion in completions])], made)
    assert values(made, "length") == [6.0, 12.0]


@pytest.mark.rows("GRPO-130")
def test_example_format() -> None:
    def form(completions, **kwargs):
        return [1.0 if re.match(r"^<think>.*?</think><answer>.*?</answer>$", completion[0]["content"]) else 0.0 for completion in completions]

    made = rollouts(says("<think>2+3 is 5</think><answer>5</answer>", "It is 5."))
    score([form], made)
    assert values(made, "form") == [1.0, 0.0]


@pytest.mark.rows("GRPO-131")
def test_example_reference() -> None:
    def boxed(completions, ground_truth, **kwargs):
        found = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
        return [float((match.group(1) if match else "") == truth) for match, truth in zip(found, ground_truth, strict=True)]

    made = rollouts([r"So it is \boxed{2}.", r"So it is \boxed{6}.", "no box"], ground_truth=["2", "5", "1"])
    score([boxed], made)
    assert values(made, "boxed") == [1.0, 0.0, 0.0]


@pytest.mark.rows("GRPO-124", "GRPO-132")
def test_example_two_tasks() -> None:
    def math_reward(completions, task, **kwargs):
        return [(1.0 if "4" in completion else -1.0) if kind == "math" else None for completion, kind in zip(completions, task, strict=True)]

    def code_reward(completions, task, **kwargs):
        return [(1.0 if "def" in completion else -1.0) if kind == "code" else None for completion, kind in zip(completions, task, strict=True)]

    made = rollouts(["4", "def f", "5", "x"], task=["math", "code", "math", "code"])
    score([math_reward, code_reward], made)
    assert values(made, "math_reward") == [1.0, None, -1.0, None] and values(made, "code_reward") == [None, 1.0, None, -1.0]
    assert [rollout.reward for rollout in made] == [1.0, 1.0, -1.0, -1.0]


@pytest.mark.rows("GRPO-116", "GRPO-133")
def test_example_async_functions_overlap() -> None:
    """Each waits for the other: one after the other, neither would ever return."""
    arrived: set[str] = set()

    async def meet(name: str, completions):
        arrived.add(name)
        while len(arrived) < 2:
            await asyncio.sleep(0.01)
        return [1.0 if completion else 0.0 for completion in completions]

    async def first(completions, **kwargs):
        return await meet("first", completions)

    async def second(completions, **kwargs):
        return await meet("second", completions)

    made = rollouts(["a", ""])
    score([first, lambda completions: [0.5, 0.5], second], made, timeout=20.0)
    assert values(made, "first") == values(made, "second") == [1.0, 0.0]
    assert [rollout.reward for rollout in made] == [2.5, 0.5]


@pytest.mark.rows("GRPO-121", "GRPO-122", "GRPO-134")
def test_example_logging() -> None:
    def reward(completions, answer, log_extra, log_metric):
        found = [re.search(r"\d+", completion) for completion in completions]
        given = [match.group() if match else "[none]" for match in found]
        scores = [float(left == right) for left, right in zip(given, answer, strict=True)]
        log_extra("golden_answer", answer)
        log_extra("extracted_answer", given)
        log_metric("accuracy", sum(scores) / len(scores))
        return scores

    made = rollouts(["it is 4", "none", "it is 6", "7"], answer=["4", "5", "6", "8"])
    metrics = score([reward], made)
    assert metrics == {"accuracy": (0.5, 1.0)}
    assert [rollout.extra for rollout in made][:2] == [{"golden_answer": "4", "extracted_answer": "4"}, {"golden_answer": "5", "extracted_answer": "[none]"}]


@pytest.mark.cases("S52")
def test_metrics_are_sums_over_calls() -> None:
    def f(completions, log_metric):
        log_metric("hit", 1.0)
        log_metric("hit", 0.0)
        return [0.0]

    def g(completions, log_metric):
        log_metric("hit", 4)
        return [0.0]

    assert score([f, g], rollouts(["a"])) == {"hit": (5.0, 3.0)}


def test_a_logged_column_of_the_wrong_length() -> None:
    def f(completions, log_extra):
        log_extra("note", ["x"])
        return [0.0, 0.0]

    with pytest.raises(UserError, match=r"reward 'f' raised ValueError: log_extra\('note'\) got 1 values, expected 2"):
        score([f], rollouts(["a", "b"]))


def test_nothing_to_score() -> None:
    assert asyncio.run(runner_of([lambda completions: []]).score([], STATE)) == {}
