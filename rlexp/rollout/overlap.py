"""Rewards of finished tasks while others are still sampled (reward.overlap)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from rlexp.records.rollout import Rollout
from rlexp.rollout.wave import play_together

S = TypeVar("S")


async def play_and_score(
    loops: Sequence[Coroutine[Any, Any, list[Rollout]]], tasks: Sequence[Hashable], score: Callable[[list[Rollout]], Awaitable[S]], worker: Executor
) -> tuple[list[list[Rollout]], list[S], float]:
    """Run agent loops, and score the rollouts of a task when the last of its loops has ended.

    tasks: of each loop; those of one task stand together. score: called once for each task that has rollouts, several at the same time.
    worker: one thread that samples. Returns the rollouts of each loop, the scores, both in the order of the loops, and the time (perf_counter)
    when the last loop had ended. When a loop or a score raises, everything else is cancelled and its exception is raised.
    """
    places = [[place for place, _ in run] for _, run in itertools.groupby(enumerate(tasks), key=lambda item: item[1])]
    rollouts: list[list[Rollout]] = [[] for _ in loops]
    left = [len(mine) for mine in places]
    complete = [asyncio.Event() for _ in places]

    async def play(task: int, place: int) -> None:
        rollouts[place] = await loops[place]
        left[task] -= 1
        if not left[task]:
            complete[task].set()

    async def score_task(task: int) -> S | None:
        await complete[task].wait()
        mine = [rollout for place in places[task] for rollout in rollouts[place]]
        return await score(mine) if mine else None

    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            scoring = [group.create_task(score_task(task)) for task in range(len(places))]
            await play_together([play(task, place) for task, mine in enumerate(places) for place in mine], worker)
            sampled = time.perf_counter()
    except BaseExceptionGroup as errors:
        failure = errors.exceptions[0]
    if failure is not None:
        raise failure
    return rollouts, [found for task in scoring if (found := task.result()) is not None], sampled
