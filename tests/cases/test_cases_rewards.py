"""Reward functions as users write them, in whole runs."""

from __future__ import annotations

import json

import pytest

EDITS = """
def first(prompts, answer):
    for prompt in prompts:
        prompt.append({"role": "assistant", "content": "X"})
        prompt[0]["content"] += "!"
    for i, text in enumerate(answer):
        answer[i] = text.upper()
    return [0.0] * len(prompts)

def second(prompts, answer):
    assert set(answer) == {"b"} and {prompt[0]["content"] for prompt in prompts} == {"1+2="}
    return [len(prompt) + i for i, prompt in enumerate(prompts)]
"""


@pytest.mark.cases("S35")
def test_one_reward_edits_the_messages_and_the_next_sees_nothing_of_it(case) -> None:
    prompt = [{"role": "user", "content": "1+2="}]
    case.tasks({"prompt": prompt, "answer": "b"})
    case.answers([[40], [41]])
    case.rewards(EDITS)
    run = case.train("algorithm.num_generations=2", "trainer.max_steps=2", "optimizer.learning_rate=0", terms={"first": 1.0, "second": 1.0})
    assert [line["rewards/second/mean"] for line in run.lines()] == [1.5, 1.5] and [line["epoch"] for line in run.lines()] == [1.0, 2.0]
    stored = [json.loads(task) for step in (1, 2) for task in run.rollouts(step)["task"]]
    assert stored == [{"answer": "b", "prompt": prompt}] * 4 and run.rollouts(1)["prompt_ids"] == run.rollouts(2)["prompt_ids"]


@pytest.mark.cases("S30", "S32")
@pytest.mark.rows("GRPO-117", "GRPO-258")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def score(completions, colour):\n    return [1.0] * 4\n", ["'colour'", "answer", "score"]),
        ("def score(completions):\n    return [1.0]\n", ["reward 'score' returned 1 values, expected 4"]),
        ("async def score(completions):\n    return None\n", ["reward 'score' returned NoneType, expected 4 values"]),
    ],
    ids=["column", "length", "none"],
)
def test_a_reward_that_cannot_work_is_named(code: str, said: list[str], case) -> None:
    case.tasks({"prompt": "1+2=", "answer": "3"})
    case.answers([[40], [41]])
    case.rewards(code)
    run = case.train("algorithm.num_generations=4", code=1)
    message = run.done.err[run.done.err.rindex("error: ") :]
    assert all(word in message for word in said)
    assert not (run.folder / "metrics.jsonl").exists() or not run.lines()
