"""Tasks and the order in which they are trained on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rlexp.config.data import DataConfig
from rlexp.config.errors import UserError
from rlexp.data.checks import Fingerprint, check_task, columns_of
from rlexp.records import keys

Task = dict[str, Any]
Chosen = tuple[int, int, Task]
"""(epoch, index, task): the index counts the training tasks, or the tasks of one pass through a stream"""


@dataclass
class TaskData:
    """What a data target returns. `task_data` makes one with checks and fingerprint."""

    train: Sequence[Task] | Iterable[Task]
    """dicts with "prompt" and further columns; has len() unless it is a stream, which can be iterated again and again"""
    held_out: Sequence[Task]
    fingerprint: str
    """of the contents (of a stream: of its source and first task); part of checkpoints"""
    columns: frozenset[str] | None = None
    """what rewards may ask for; None: read from the tasks"""
    shuffle_buffer: int = 1000
    """tasks held at once to shuffle a stream"""
    prompt_limit: int | None = None
    """longer prompts are cut to their last so many tokens when they are rendered (data.overlong_prompt=cut_left); None: never"""
    dropped: int = 0
    """tasks left out because of their long prompts; of a stream: so far"""
    cut: int = 0
    """tasks whose prompts are cut; of a stream: so far"""

    def __post_init__(self) -> None:
        if self.columns is None:
            self.columns = columns_of(self.train if self.sized else first_tasks(self.train, 1))

    @property
    def count(self) -> int | None:
        """The number of training tasks, None for a stream."""
        return len(self.train) if isinstance(self.train, Sized) else None

    @property
    def sized(self) -> bool:
        """Whether the number of training tasks is known (not a stream)."""
        return isinstance(self.train, Sized)


def seed_of(config: DataConfig, run_seed: int) -> int:
    """The seed of task generation and order: data.seed, or run.seed when that is null."""
    return run_seed if config.seed is None else config.seed


def first_tasks(tasks: Iterable[Task], count: int) -> list[Task]:
    """The first tasks of a sequence or stream."""
    return list(itertools.islice(tasks, count))


def task_data(train: Sequence[Task], held_out: Sequence[Task]) -> TaskData:
    """Check every task and take the fingerprint, in one pass. Raises UserError for an empty or unusable dataset."""
    if not len(train):
        raise UserError("the dataset has no training tasks: check data.path, data.split and data.size")
    fingerprint = Fingerprint()
    columns: set[str] = set()
    for where, tasks in (("training", train), ("held-out", held_out)):
        fingerprint.add(where)
        for index, task in enumerate(tasks):
            check_task(task, f"{where} task {index}")
            fingerprint.add(task)
            columns.update(task)
    return TaskData(train, held_out, fingerprint.hexdigest(), frozenset(columns) - {"prompt"})


class TaskOrder:
    """Which tasks are played in which generation batch: a pure function of the batch number.

    Sized data: each epoch has its own permutation; the last, incomplete chunk of an epoch is left out and reported
    (`left_over`). Streams: a seeded shuffle through a buffer; going forward reads on, going back reads the stream anew.
    """

    def __init__(self, data: TaskData, *, seed: int, shuffle: bool, prompts_per_batch: int) -> None:
        """seed: see seed_of. Raises UserError when there are fewer tasks than one batch takes."""
        self._data = data
        self._seed = seed
        self._shuffle = shuffle
        self._size = prompts_per_batch
        self._position = 0
        self.batches_per_epoch: int | None = None
        self.left_over = 0
        if not data.sized:
            self._stream = _StreamReader(data.train, seed, data.shuffle_buffer if shuffle else 1, prompts_per_batch)
            return
        tasks = len(cast(Sequence[Task], data.train))
        if tasks == 0:
            raise UserError("the dataset has no training tasks: check data.path, data.split and data.size")
        if tasks < prompts_per_batch:
            raise UserError(_too_few(tasks, prompts_per_batch) + (f"; {len(data.held_out)} more are held out (data.eval_size)" if len(data.held_out) else ""))
        self.batches_per_epoch, self.left_over = divmod(tasks, prompts_per_batch)
        self._epoch_order: tuple[int, np.ndarray] = (0, self._permutation(0))

    def batch(self, number: int) -> list[Chosen]:
        """The tasks of generation batch `number`, counted from 0: prompts_per_batch entries (epoch, index, task)."""
        self._position = number + 1
        if self.batches_per_epoch is None:
            return self._stream.batch(number)
        epoch, chunk = divmod(number, self.batches_per_epoch)
        if self._epoch_order[0] != epoch:
            self._epoch_order = (epoch, self._permutation(epoch))
        train = cast(Sequence[Task], self._data.train)
        return [(epoch, int(index), train[int(index)]) for index in self._epoch_order[1][chunk * self._size : (chunk + 1) * self._size]]

    def epoch_of(self, batches: int) -> float:
        """Epochs that this many batches are, e.g. for progress; the passes begun for a stream."""
        if self.batches_per_epoch is None:
            return float(self._stream.epoch)
        return batches / self.batches_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """The position (number of the next batch) and the fingerprint of the data."""
        return {"position": self._position, "fingerprint": self._data.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position; a stream is read up to it. Raises UserError when the data are not those of the checkpoint."""
        if state["fingerprint"] != self._data.fingerprint:
            raise UserError(
                "the training data are not those of the checkpoint (data.* or the files changed): restore them, or start anew with another run.name"
            )
        self._position = state["position"]
        if self.batches_per_epoch is None and self._position:
            self._stream.batch(self._position - 1)

    def _permutation(self, epoch: int) -> np.ndarray:
        tasks = len(cast(Sequence[Task], self._data.train))
        if not self._shuffle:
            return np.arange(tasks)
        return keys.generator(self._seed, "order", epoch).permutation(tasks)


class _StreamReader:
    """Batches of a stream in order; remembers the last one, and starts over when an earlier one is asked for."""

    def __init__(self, tasks: Iterable[Task], seed: int, buffer: int, size: int) -> None:
        self._tasks = tasks
        self._seed = seed
        self._buffer = buffer
        self._size = size
        self._last: list[Chosen] = []
        self._restart()

    def batch(self, number: int) -> list[Chosen]:
        """Batch `number` of the endless sequence of passes through the stream."""
        if number < self._next - 1:
            self._restart()
        while self._next <= number:
            self._last = self._read()
            self._next += 1
        return self._last

    def _restart(self) -> None:
        self.epoch = 0
        self._next = 0
        self._last = []
        self._open()

    def _open(self) -> None:
        self._source = self._shuffled(self.epoch)
        self._batches_of_pass = 0

    def _read(self) -> list[Chosen]:
        while True:
            batch = list(itertools.islice(self._source, self._size))
            if len(batch) == self._size:
                self._batches_of_pass += 1
                return batch
            if not self._batches_of_pass:
                raise UserError(_too_few(len(batch), self._size) if batch else "the stream of training tasks is empty: check data.path and data.split")
            self.epoch += 1
            self._open()

    def _shuffled(self, epoch: int) -> Iterator[Chosen]:
        """Each task leaves a full buffer from a random place; a buffer of one keeps the order."""
        random = keys.generator(self._seed, "order", epoch)
        held: list[Chosen] = []
        for index, task in enumerate(self._tasks):
            held.append((epoch, index, task))
            if len(held) == self._buffer:
                yield _take(held, int(random.integers(len(held))))
        while held:
            yield _take(held, int(random.integers(len(held))))


def _take(held: list[Chosen], place: int) -> Chosen:
    """Remove one entry in constant time."""
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def _too_few(tasks: int, size: int) -> str:
    return f"rollout.prompts_per_batch={size} needs at least {size} training tasks, but the dataset has {tasks}: lower it to {tasks} or less, or add tasks"
