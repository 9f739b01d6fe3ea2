"""Rewards that raise or hang."""

from __future__ import annotations

import asyncio
import functools
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from reward_runs import STATE, rollouts, runner_of, score, values

from rlexp.config.errors import UserError
from rlexp.rewards.errors import RewardError
from rlexp.rewards.terms import Term


def broken(completions, log_extra, log_metric):
    log_extra("note", ["x"] * len(completions))
    log_metric("hit", 1.0)
    raise KeyError("answer")


async def async_broken(completions):
    raise KeyError("answer")


def returns_broken_coroutine(completions):
    return async_broken(completions)


@pytest.mark.parametrize("function", [broken, async_broken, returns_broken_coroutine])
def test_stop_names_reward_exception_and_place(function) -> None:
    with pytest.raises(
        RewardError, match=r"reward 'judge' raised KeyError: 'answer' at .*test_failures.py:\d+; fix the function, or set reward.on_error"
    ) as caught:
        score([Term("judge", function)], rollouts(["a"]))
    assert isinstance(caught.value, UserError) and caught.value.reward == "judge"
    assert isinstance(caught.value.__cause__, KeyError)
    assert 'raise KeyError("answer")' in caught.value.details


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), TimeoutError("inner")])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_exceptions_that_would_end_a_thread(error: BaseException, asynchronous: bool) -> None:
    def judge(completions):
        raise error

    async def async_judge(completions):
        raise error

    runner = runner_of([Term("judge", async_judge if asynchronous else judge), Term("fine", lambda completions: [1.0])], on_error="none")
    made = rollouts(["a"])
    for _ in range(2):
        metrics = asyncio.run(runner.score(made, STATE))
        assert made[0].rewards == {"judge": None, "fine": 1.0} and metrics["rewards/judge/errors"] == (1.0, 1.0)
        assert "nondeterminism/reward_timeout" not in metrics


def test_none_and_value(caplog: pytest.LogCaptureFixture) -> None:
    made = rollouts(["a", "b"])
    terms = [Term("judge", broken), Term("fine", lambda completions: [1.0, 0.0])]
    metrics = score(terms, made, on_error="none")
    assert values(made, "judge") == [None, None] and [rollout.reward for rollout in made] == [1.0, 0.0]
    assert metrics == {"rewards/judge/errors": (1.0, 1.0), "rewards/fine/errors": (0.0, 1.0)}  # what the failed call logged does not count
    assert made[0].extra == {}
    assert "reward 'judge' raised KeyError" in caplog.text and 'raise KeyError("answer")' in caplog.text
    score(terms, made, on_error="value", error_value=-2.0)
    assert values(made, "judge") == [-2.0, -2.0]


def test_only_the_first_failure_is_told_in_full(caplog: pytest.LogCaptureFixture) -> None:
    runner = runner_of([Term("judge", broken)], on_error="value")
    for _ in range(3):
        asyncio.run(runner.score(rollouts(["a"]), STATE))
    assert len(caplog.records) == 1


def hang(completions):
    time.sleep(30)
    return [1.0]


async def async_hang(completions):
    await asyncio.sleep(30)
    return [1.0]


async def blocking(completions):
    time.sleep(30)
    return [1.0]


def returns_hanging_coroutine(completions):
    return async_hang(completions)


@pytest.mark.parametrize("function", [hang, async_hang, blocking, returns_hanging_coroutine])
def test_a_hanging_call_ends_at_its_deadline(function) -> None:
    """Also the calls after it work, though its thread or event loop is lost."""
    calls: list[str] = []

    async def later(completions):
        return [2.0]

    def then(completions):
        calls.append(threading.current_thread().name)
        return [1.0]

    slow = [True]

    @functools.wraps(function)
    def once(completions):
        return function(completions) if slow[0] else [5.0]

    @functools.wraps(function)
    async def once_async(completions):
        return await function(completions) if slow[0] else [5.0]

    hanging = once_async if asyncio.iscoroutinefunction(function) else once
    runner = runner_of([Term("judge", hanging), Term("then", then), Term("later", later)], timeout=0.5, on_error="none")
    began = time.monotonic()
    made = rollouts(["a"])
    metrics = asyncio.run(runner.score(made, STATE))
    assert time.monotonic() - began < 5
    assert made[0].rewards["judge"] is None and made[0].rewards["then"] == 1.0
    assert metrics["rewards/judge/errors"] == (1.0, 1.0) and metrics["nondeterminism/reward_timeout"][0] >= 1
    slow[0] = False
    metrics = asyncio.run(runner.score(made, STATE))
    assert made[0].rewards == {"judge": 5.0, "then": 1.0, "later": 2.0} and "nondeterminism/reward_timeout" not in metrics


@pytest.mark.cases("S49")
def test_a_late_reward_stops_the_run_by_default() -> None:
    with pytest.raises(
        RewardError, match=r"reward 'judge' was not done after reward.timeout=0.1 s; raise reward.timeout, or set reward.on_error=none or value"
    ):
        score([Term("judge", hang)], rollouts(["a"]), timeout=0.1)


def test_a_hanging_reward_does_not_keep_the_process() -> None:
    code = (
        f"TESTS = {str(Path(__file__).parent.parent)!r}"
        + """
import asyncio, sys, time
sys.path.insert(0, TESTS)
from reward_runs import rollouts, score
from rlexp.rewards.terms import Term
def hang(completions): time.sleep(60)
async def block(completions): time.sleep(60)
for function in (hang, block):
    made = rollouts(["a"])
    score([Term("judge", function)], made, timeout=0.1, on_error="value", error_value=7.0)
    print(made[0].reward)
"""
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)
    assert done.stdout == "7.0\n7.0\n" and done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30


def test_sync_rewards_never_overlap() -> None:
    """Also when two groups are scored at once: they share one thread."""
    running, most, threads = [0], [0], set()

    def judge(completions):
        threads.add(threading.get_ident())
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        running[0] -= 1
        return [1.0]

    runner = runner_of([Term("a", judge), Term("b", judge)], timeout=5.0)
    groups = [rollouts(["x"]) for _ in range(4)]

    async def all_groups():
        await asyncio.gather(*(runner.score(made, STATE) for made in groups))

    asyncio.run(all_groups())
    assert most[0] == 1 and len(threads) == 1 and threading.get_ident() not in threads
    assert all(made[0].reward == 2.0 for made in groups)


def test_a_deadline_counts_from_when_the_call_starts() -> None:
    runner = runner_of([Term("a", lambda completions: time.sleep(0.1) or [1.0])], timeout=0.5)

    groups = [rollouts(["x"]) for _ in range(6)]

    async def all_groups():
        await asyncio.gather(*(runner.score(made, STATE) for made in groups))

    asyncio.run(all_groups())
    assert [made[0].reward for made in groups] == [1.0] * 6, "the last waits longer than its deadline before it starts"


def test_async_rewards_keep_their_event_loop() -> None:
    """A connection pool made in one call works in the next, although the caller's loop is another."""
    loops = set()

    async def judge(completions):
        loops.add(id(asyncio.get_running_loop()))
        return [1.0]

    runner = runner_of([judge])
    for _ in range(3):
        asyncio.run(runner.score(rollouts(["x"]), STATE))
    assert len(loops) == 1


def test_failed_rows_without_another_reward_are_unscored() -> None:
    made = rollouts(["a"])
    score([Term("judge", broken)], made, on_error="none")
    assert math.isnan(made[0].reward)
