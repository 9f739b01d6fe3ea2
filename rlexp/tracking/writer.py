"""One thread that writes a run's files, in order, while training goes on."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from rlexp.config.errors import UserError

MOST_WAITING = 32
"""Writes that may wait: each may hold the rollouts of a batch. A disk that is slower than training slows it down, as it must."""
PATIENCE = 600.0
"""Seconds after which a disk that does not answer ends the run"""


class Writer:
    """Makes the writes it is given one after the other.

    The first one that raises is the last one that is tried, so that no file has a hole; its exception is raised by the next call of `put`,
    `flush` or `close`. folder: what is written to, for the message about a disk that hangs. patience: seconds to wait for it.
    """

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        self._folder, self._patience = folder, patience
        self._waiting: queue.Queue[Callable[[], object] | None] = queue.Queue(MOST_WAITING)
        self._error: BaseException | None = None
        self._raised = False
        self._thread = threading.Thread(target=self._work, name="run files", daemon=True)
        self._thread.start()

    def put(self, write: Callable[[], object]) -> None:
        """Make this write after all earlier ones. It must not read anything that is changed later."""
        self._raise()
        self._queue(functools.partial(self._try, write))

    def flush(self) -> None:
        """Wait until everything is written."""
        reached = threading.Event()
        self._queue(reached.set)
        if not reached.wait(self._patience):
            self._stuck()
        self._raise()

    def close(self) -> None:
        """Write what is left and end the thread. An error that was raised before is not raised again."""
        if self._thread.is_alive() and not isinstance(self._error, _Stuck):
            self._queue(None)
            self._thread.join(self._patience)
            if self._thread.is_alive():
                self._stuck()
        if not self._raised:
            self._raise()

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            job()

    def _try(self, write: Callable[[], object]) -> None:
        if self._error is None:
            try:
                write()
            except BaseException as error:  # whatever it is, it belongs to the thread that trains
                self._error = error

    def _queue(self, job: Callable[[], object] | None) -> None:
        try:
            self._waiting.put(job, timeout=self._patience)
        except queue.Full:
            self._stuck()

    def _stuck(self) -> None:
        self._error = _Stuck(f"nothing could be written to {self._folder} for {self._patience:g} s: look at the disk, then run the same command to continue")
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            self._raised = True
            raise self._error


class _Stuck(UserError):
    """The disk does not answer."""
