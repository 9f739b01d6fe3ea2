"""Plays rollouts together and samples in waves.

A wave runs when every live rollout waits for tokens, in the order of `Request.order`. So what is sampled together depends on what
the rollouts do and never on how long a tool or an environment takes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlexp.generation.base import LocalGenerator, current_wave
from rlexp.records.request import Request
from rlexp.records.turn import Turn

T = TypeVar("T")


async def play_together(loops: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run agent loops to their ends; their results in the order given.

    When one raises, the others are cancelled and its exception is raised (the first one in order, if several raised).
    """
    table = _Table(len(loops))
    tasks = [table.seat(number, loop) for number, loop in enumerate(loops)]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [task.exception() for task in tasks if not task.cancelled()]
    for error in errors:
        if error is not None:
            raise error
    return [task.result() for task in tasks]


@dataclass
class _Waiting:
    generator: LocalGenerator
    request: Request
    turn: asyncio.Future[Turn]


@dataclass
class _Seat:
    """One rollout's place at the table: what `LocalGenerator.sample` finds as the current wave."""

    table: _Table
    number: int

    async def join(self, generator: LocalGenerator, request: Request) -> Turn:
        waiting = _Waiting(generator, request, asyncio.get_running_loop().create_future())
        self.table.wait(self.number, waiting)
        return await waiting.turn


class _Table:
    """Knows which rollouts live and which of them wait. One that waits for several turns at once counts once."""

    def __init__(self, seats: int) -> None:
        self.live = seats
        self.waiting: list[_Waiting] = []
        self.waiting_seats: set[int] = set()

    def seat(self, number: int, loop: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a rollout."""
        context = contextvars.copy_context()
        context.run(current_wave.set, _Seat(self, number))
        task = asyncio.get_running_loop().create_task(loop, context=context)
        task.add_done_callback(lambda _: self._leave(number))
        return task

    def wait(self, number: int, waiting: _Waiting) -> None:
        """Take a request. The wave is looked at later, so that turns a rollout gathers at once join the same wave."""
        self.waiting.append(waiting)
        self.waiting_seats.add(number)
        asyncio.get_running_loop().call_soon(self._run_if_all_wait)

    def _leave(self, number: int) -> None:
        self.live -= 1
        self.waiting_seats.discard(number)
        self._run_if_all_wait()

    def _run_if_all_wait(self) -> None:
        if not self.waiting or len(self.waiting_seats) < self.live:
            return
        wave = sorted((waiting for waiting in self.waiting if not waiting.turn.done()), key=lambda waiting: (waiting.request.order, waiting.request.key))
        self.waiting, self.waiting_seats = [], set()
        for generator in dict.fromkeys(waiting.generator for waiting in wave):
            _run(generator, [waiting for waiting in wave if waiting.generator is generator])


def _run(generator: LocalGenerator, wave: list[_Waiting]) -> None:
    """Sample and answer; an exception of the generator reaches the rollouts that wait for it."""
    try:
        turns = generator.sample_wave([waiting.request for waiting in wave])
    except Exception as error:
        for waiting in wave:
            waiting.turn.set_exception(error)
        return
    for waiting, turn in zip(wave, turns, strict=True):
        waiting.turn.set_result(turn)
