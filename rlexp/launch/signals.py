"""SIGTERM, SIGINT and SIGUSR2 ask the run to stop: the trainer finishes its step, saves, and the process exits with 75."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""Slurm and submitit warn by SIGUSR2, preemption and `kill` send SIGTERM, Ctrl-C SIGINT"""
PREEMPTED_CODE = 75
"""Exit code of a run that was stopped and can be continued (EX_TEMPFAIL of sysexits.h)"""
PAUSED_CODE = 76
"""What rank processes end with when their sweep had the run pause or the user stopped it; the program then ends with 0, as all went as wished"""


class StopRequest:
    """Whether somebody asked this process to stop. The trainer reads it at each step boundary."""

    def __init__(self, announce: bool = True) -> None:
        """announce: whether to say on stderr that a signal was understood."""
        self.announce = announce
        self.signal: signal.Signals | None = None
        self.forward: Callable[[int], None] | None = None
        """called with each signal, e.g. to pass it on to rank processes"""
        self._interrupts = 0
        self._seen: set[int] = set()
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """True from the first signal on."""
        return self.signal is not None

    @property
    def reason(self) -> str:
        """For status.json."""
        return f"stopped by {self.signal.name}" if self.signal else "stopped"

    def chain(self) -> None:
        """Call the handler that the signal had before ours, now that everything is saved: submitit's for SIGUSR2 requeues the job. Some clusters send
        SIGTERM before it."""
        number = signal.SIGUSR2 if signal.SIGUSR2 in self._seen else self.signal
        handler = self._previous.get(number) if number else None
        if callable(handler) and handler is not signal.default_int_handler:
            handler(number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen.add(number)
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            os._exit(1)  # something swallows KeyboardInterrupt
        if self._interrupts > 1:
            if self.forward is not None:
                self.forward(signal.SIGKILL)
            raise KeyboardInterrupt
        if not self.requested:
            self.signal = signal.Signals(number)
            hint = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
            if self.announce:  # not by the logger: a handler may interrupt it while it holds its lock
                os.write(2, f"{self.signal.name}: finishing this step, then saving{hint}\n".encode())
        if self.forward is not None:
            self.forward(number)


_current = StopRequest()


def stop_request() -> StopRequest:
    """The stop request of this process."""
    return _current


@contextmanager
def handling(announce: bool = True) -> Iterator[StopRequest]:
    """Install the handlers and put the previous ones back. Outside the main thread, where Python allows none, the flag alone is given."""
    global _current
    stop = _current = StopRequest(announce)
    if threading.current_thread() is threading.main_thread():
        stop._previous = {number: signal.signal(number, stop._handle) for number in HANDLED}
    try:
        yield stop
    finally:
        for number, handler in stop._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def shield_children() -> None:
    """From now on SIGUSR2 is for this process alone. Slurm sends it to every process of a job, and one that does not expect it dies.

    It stays blocked, which children inherit, and a thread that waits for it calls the handler in the main thread, as if it had come there. A rank, which
    inherits this, calls it too and gets its signals back.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def wait() -> None:
        while True:
            _thread.interrupt_main(signal.Signals(signal.sigwait({signal.SIGUSR2})))

    threading.Thread(target=wait, name="sigusr2", daemon=True).start()


def shielded() -> bool:
    """Whether this process was started by one that shields its children."""
    return signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, set())
