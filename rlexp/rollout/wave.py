"""Plays rollouts together and samples in waves.

A wave runs when every live rollout waits for tokens, in the order of `Request.order`. So what is sampled together depends on what
the rollouts do and never on how long a tool or an environment takes.

With a worker the wave runs in its thread and each turn is answered as soon as it is complete, so that rewards and tools need not wait for
the longest one. The next wave still waits for all.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from rlexp.generation.base import LocalGenerator, current_wave
from rlexp.records.request import Request
from rlexp.records.turn import Turn

T = TypeVar("T")


async def play_together(loops: Sequence[Coroutine[Any, Any, T]], worker: Executor | None = None) -> list[T]:
    """Run agent loops to their ends; their results in the order given.

    worker: one thread, for waves that answer early; None: waves run here, and answer at their end.
    When one raises, the others are cancelled and its exception is raised (the first one in order, if several raised). Neither then nor when
    it is cancelled does it leave a wave behind.
    """
    table = _Table(len(loops), worker)
    tasks = [table.seat(number, loop) for number, loop in enumerate(loops)]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        table.closed = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if table.running is not None:
            await table.running  # stops at its next turn
    errors = [task.exception() for task in tasks if not task.cancelled()]
    for error in errors:
        if error is not None:
            raise error
    return [task.result() for task in tasks]


@dataclass(eq=False)
class _Waiting:
    """A request, whose it is, and where its turn is awaited."""

    seat: int
    generator: LocalGenerator
    request: Request
    turn: asyncio.Future[Turn]
    outcome: Turn | Exception | None = None

    def answer(self) -> None:
        """Give the outcome to who waits, if anybody still does."""
        if self.turn.done():
            return
        if isinstance(self.outcome, Turn):
            self.turn.set_result(self.outcome)
        elif self.outcome is not None:
            self.turn.set_exception(self.outcome)


@dataclass
class _Seat:
    """One rollout's place at the table: what `LocalGenerator.sample` finds as the current wave."""

    table: _Table
    number: int

    async def join(self, generator: LocalGenerator, request: Request) -> Turn:
        waiting = _Waiting(self.number, generator, request, asyncio.get_running_loop().create_future())
        self.table.wait(waiting)
        return await waiting.turn


class _Table:
    """Knows which rollouts live and which of them wait. One that waits for several turns at once counts once."""

    def __init__(self, seats: int, worker: Executor | None) -> None:
        self.live, self.worker = seats, worker
        self.waiting: list[_Waiting] = []
        self.waiting_seats: set[int] = set()
        self.running: asyncio.Task[None] | None = None
        self.closed = False
        """nobody waits any more: no further wave begins, and the one that runs ends"""

    def seat(self, number: int, loop: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a rollout."""
        context = contextvars.copy_context()
        context.run(current_wave.set, _Seat(self, number))
        task = asyncio.get_running_loop().create_task(loop, context=context)
        task.add_done_callback(lambda _: self._leave(number))
        return task

    def wait(self, waiting: _Waiting) -> None:
        """Take a request. The wave is looked at later, so that turns a rollout gathers at once join the same wave."""
        self.waiting.append(waiting)
        self.waiting_seats.add(waiting.seat)
        asyncio.get_running_loop().call_soon(self._run_if_all_wait)

    def _leave(self, number: int) -> None:
        self.live -= 1
        self.waiting_seats.discard(number)
        self._run_if_all_wait()

    def _run_if_all_wait(self) -> None:
        if self.closed or self.running is not None or not self.waiting or len(self.waiting_seats) < self.live:
            return
        wave = sorted((waiting for waiting in self.waiting if not waiting.turn.done()), key=lambda waiting: (waiting.request.order, waiting.request.key))
        self.waiting, self.waiting_seats = [], set()
        parts = [[waiting for waiting in wave if waiting.generator is generator] for generator in dict.fromkeys(each.generator for each in wave)]
        if self.worker is None:
            for part in parts:
                _run(part)
        else:
            self.running = asyncio.get_running_loop().create_task(self._run_outside(parts, self.worker))

    async def _run_outside(self, parts: list[list[_Waiting]], worker: Executor) -> None:
        """Run a wave in the worker's thread. A seat is answered when all its turns are there, so that it goes on as if the wave had ended."""
        loop = asyncio.get_running_loop()
        seats: dict[int, list[_Waiting]] = {}
        for waiting in itertools.chain.from_iterable(parts):
            seats.setdefault(waiting.seat, []).append(waiting)

        def settle(waiting: _Waiting, outcome: Turn | Exception) -> None:
            waiting.outcome = outcome
            if all(each.outcome is not None for each in seats[waiting.seat]):
                for each in seats[waiting.seat]:
                    each.answer()

        def done(part: list[_Waiting], place: int, turn: Turn) -> None:
            if self.closed:
                raise _NobodyWaits
            loop.call_soon_threadsafe(settle, part[place], turn)

        for part in parts:
            requests = [waiting.request for waiting in part]
            try:
                await loop.run_in_executor(worker, part[0].generator.stream_wave, requests, functools.partial(done, part))
            except Exception as error:
                for waiting in part:
                    if waiting.outcome is None:
                        settle(waiting, error)
        self.running = None
        loop.call_soon(self._run_if_all_wait)


class _NobodyWaits(Exception):
    """Ends a wave in its thread."""


def _run(part: list[_Waiting]) -> None:
    """Sample and answer; an exception of the generator reaches the rollouts that wait for it."""
    try:
        turns = part[0].generator.sample_wave([waiting.request for waiting in part])
    except Exception as error:
        for waiting in part:
            waiting.turn.set_exception(error)
        return
    for waiting, turn in zip(part, turns, strict=True):
        waiting.turn.set_result(turn)
