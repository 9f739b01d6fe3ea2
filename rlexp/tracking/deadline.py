"""One thread per tracker: its calls run in order, and neither their errors nor their silence reach the trainer."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

from rlexp.tracking.run import Tracker, TrackingRun

log = logging.getLogger(__name__)
MOST_WAITING = 10_000
"""Calls kept while a tracker does not answer; later ones are dropped with a warning."""
EXIT_GRACE = 1.0
"""Seconds the exit handlers of a hanging tracker's library get before the process leaves."""


class GuardedTracker:
    """A tracker whose calls are queued for a daemon thread.

    timeout: seconds one call may take. A call that takes longer is reported and training goes on; later calls wait in the queue and
    are sent should it come back. Each kind of failure (which call, which error) is reported once.
    """

    def __init__(self, name: str, tracker: Tracker, timeout: float) -> None:
        self.name = name
        self._tracker = tracker
        self._timeout = timeout
        self._calls: queue.Queue[tuple[str, Callable[[], None] | None]] = queue.Queue(MOST_WAITING)
        self._current: tuple[str, float] | None = None
        self._broken = False
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def start(self, run: TrackingRun) -> None:
        """Queue the tracker's start; when it raises, no further call is made."""
        self._put("start", lambda: self._tracker.start(run))

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Queue the metrics of a step."""
        self._report_if_late()
        self._put("log", lambda: self._tracker.log(step, split, metrics))

    def finish(self, exit_code: int) -> None:
        """Queue the end; `wait` waits for it."""
        self._put("finish", lambda: self._tracker.finish(exit_code))
        self._put("end", None)

    def wait(self, seconds: float) -> bool:
        """Wait for everything queued, at most so many seconds, and no longer for a call that is already late. Returns whether it all was sent."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline and not self._late():
            self._thread.join(0.02)
        if not self._thread.is_alive():
            return True
        self._report_if_late()
        self._warn("unsent", f"left behind after {self._timeout:g} s with {self._calls.qsize()} calls unsent; tracker.timeout sets how long to wait")
        return False

    def _work(self) -> None:
        while True:
            name, function = self._calls.get()
            if function is None:
                return
            if self._broken:
                continue
            self._current = (name, time.monotonic())
            try:
                function()
            except BaseException as error:  # a tracker's failure, of whatever kind, is reported and never ends the run
                self._broken = name == "start"
                rest = "nothing is sent to it" if self._broken else "the run goes on"
                self._warn(f"{name} {type(error).__name__}", f"{name} raised {type(error).__name__}: {error} ({rest})")
            self._current = None

    def _put(self, name: str, function: Callable[[], None] | None) -> None:
        try:
            self._calls.put_nowait((name, function))
        except queue.Full:
            self._warn("full", f"does not keep up: {MOST_WAITING} calls wait, further ones are dropped")

    def _late(self) -> bool:
        current = self._current
        return current is not None and time.monotonic() - current[1] > self._timeout

    def _report_if_late(self) -> None:
        current = self._current
        if current is not None and self._late():
            self._warn(f"{current[0]} late", f"{current[0]} has not answered for {self._timeout:g} s (tracker.timeout); the run goes on")

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("tracker %s: %s", self.name, message)


def leave_at_exit(exit_code: int) -> None:
    """Make sure that exit handlers of a hanging tracker's library (wandb waits 90 s in one) do not hold the process.

    Handlers run last in, first out, so ours starts the clock before theirs. The thread is started now: at exit it is too late for that.
    """
    leaving = threading.Event()

    def watch() -> None:
        leaving.wait()
        time.sleep(EXIT_GRACE)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    threading.Thread(target=watch, name="tracker-exit", daemon=True).start()
    atexit.register(leaving.set)
