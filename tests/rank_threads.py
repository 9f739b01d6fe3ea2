"""Several ranks as threads of one process, for tests of what ranks tell each other."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

DEADLINE = 20.0
"""seconds a rank may wait for the others"""


class ThreadCollectives:
    """Objects travel pickled, as between processes; a rank that does not come breaks the barrier for all."""

    def __init__(self, rank: int, world: int, barrier: threading.Barrier, board: list[bytes]) -> None:
        self.rank, self.world = rank, world
        self._barrier, self._board = barrier, board

    def gather_objects(self, value: Any) -> list[Any]:
        self._board[self.rank] = pickle.dumps(value)
        self._barrier.wait(DEADLINE)
        values = [pickle.loads(item) for item in self._board]
        self._barrier.wait(DEADLINE)
        return values


def on_ranks(world: int, work: Callable[[ThreadCollectives], Any]) -> list[Any]:
    """What each rank's work returned, or the exception it raised."""
    barrier, board = threading.Barrier(world), [b""] * world
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadCollectives(rank, world, barrier, board))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
        assert not thread.is_alive(), "a rank hangs"
    return results
