"""The next batch of a stream is read while the present one is sampled and trained on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from rlexp.rollout.player import Task
from rlexp.rollout.sync import Order


class ReadAhead:
    """The batches of an order, each read by a thread before it is asked for: rows that come over a network keep nobody waiting.

    What reading a batch raises is raised when the batch is taken. There is never more than one read at a time.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._next: tuple[int, Future[tuple[Sequence[Task], float]]] | None = None
        self._epoch = (0, order.epoch_of(0))

    def batch(self, number: int) -> Sequence[Task]:
        """The tasks of a generation batch; the one after it is begun."""
        tasks, epoch = self._taken(number)
        self._epoch = (number + 1, epoch)
        self._next = (number + 1, self._begun(number + 1))
        return tasks

    def epoch_of(self, batches: int) -> float:
        """Epochs that so many batches are, whatever was read beyond them. A resumed run reads up to there first."""
        if batches != self._epoch[0]:
            self.batch(batches - 1)
        return self._epoch[1]

    def _taken(self, number: int) -> tuple[Sequence[Task], float]:
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] == number:
            return ahead[1].result()
        if ahead is not None:
            ahead[1].exception()  # waits
        return self._read(number)

    def _begun(self, number: int) -> Future[tuple[Sequence[Task], float]]:
        future: Future[tuple[Sequence[Task], float]] = Future()

        def work() -> None:
            try:
                future.set_result(self._read(number))
            except BaseException as error:  # belongs to who takes the batch
                future.set_exception(error)

        threading.Thread(target=work, name="next tasks", daemon=True).start()
        return future

    def _read(self, number: int) -> tuple[Sequence[Task], float]:
        return self._order.batch(number), self._order.epoch_of(number + 1)
