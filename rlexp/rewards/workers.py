"""Where reward functions run: sync ones in one thread, async ones on one event loop, both daemons that a hanging call cannot keep alive.

A call past its deadline is left behind; the next one gets a new thread. The event loop is ours alone, so that a coroutine that
blocks does not stop generation, and a reward's connections live as long as the run.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

_PULSE = 1.0
"""seconds within which a healthy event loop answers"""


@dataclass(frozen=True)
class Returned:
    """A call that came back."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """A call that raised; SystemExit and the like too, which must not end the worker."""

    error: BaseException


class Late(Exception):
    """A call that was not done by its deadline."""


class SyncWorker:
    """Runs one function after the other in a daemon thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] | None = None

    async def call(self, function: Callable[[], Any], seconds: float | None) -> Returned | Raised:
        """Run a function; raises Late after so many seconds, if any. One call at a time: the caller waits its turn."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._jobs,), name="rewards", daemon=True).start()
        future: Future = Future()
        self._jobs.put((future, function))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._jobs.put(None)  # should the call ever return, its thread ends
            self._jobs = None
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Late from None


class AsyncWorker:
    """Runs coroutines together on an event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(self, function: Callable[[], Awaitable[Any]], seconds: float) -> Returned | Raised:
        """Run a coroutine function; raises Late."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="async rewards", daemon=True).start()
        loop = self._loop
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_guarded(function), loop)), seconds)
        except TimeoutError:
            if not await _alive(loop):
                loop.call_soon_threadsafe(loop.stop)
                self._loop = None if self._loop is loop else self._loop
            raise Late from None


def _work(jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None]) -> None:
    while (job := jobs.get()) is not None:
        future, function = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            outcome: Returned | Raised = Returned(function())
        except BaseException as error:
            outcome = Raised(error)
        future.set_result(outcome)


async def _guarded(function: Callable[[], Awaitable[Any]]) -> Returned | Raised:
    try:
        return Returned(await function())
    except BaseException as error:
        return Raised(error)


async def _alive(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop still runs callbacks: a coroutine that blocks would keep all later ones waiting."""
    answered: Future = Future()
    loop.call_soon_threadsafe(lambda: answered.set_result(True) if answered.set_running_or_notify_cancel() else None)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(answered), _PULSE)
    except TimeoutError:
        return False
