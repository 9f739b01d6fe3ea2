"""What runs inside a measured process: it waits for its turn at the start of each batch and records what the batch cost.

The loop under measurement is the library's own; it calls in at four places: `arrive` (about to generate), `generated`, `rewarded`
(the last reward is there) and `optimized` (an optimizer step is done; the last one of a batch counts).
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import pstats
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rlexp.tracking.memory import Memory

ROWS = 45
"""of a profile"""


class Stop(BaseException):
    """No more turns: leaves the library's loop, whatever it catches."""


def now() -> float:
    """Seconds; on a GPU, once it has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Recorder:
    """Talks to the parent over a pipe.

    The parent sends "step", ("profile", FILE) or "stop"; for each of the first two it gets the record of one batch: seconds
    `generation`, `update` and `step`, bytes `memory`, and whatever `count` was given.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.memory: Memory | None = None
        self.profile: _Profile | None = None
        self.began: float | None = None
        self.generation = self.rewarded_at = self.optimized_at = 0.0
        self.counts: dict[str, Any] = {}

    def ready(self, **about: Any) -> None:
        """The model is loaded: memory counts from here. about: goes to the parent."""
        self.memory = Memory()
        self.pipe.send(about)

    def arrive(self) -> None:
        """Hand in the batch that has ended, and wait for the turn of the next. Raises Stop."""
        assert self.memory is not None
        if self.began is not None:
            seconds = now() - self.began
            peak = self.memory.peak
            if self.profile is not None:
                self.profile.close()
                self.profile = None
            times = {"generation": self.generation, "update": self.optimized_at - self.rewarded_at, "step": seconds}
            self.pipe.send({**times, "memory": peak, **self.counts})
        self.counts = {}
        command = self.pipe.recv()
        if command == "stop":
            raise Stop
        if command != "step":
            self.profile = _Profile(Path(command[1]))
        self.memory.reset()
        self.began = now()

    def generated(self, since: float) -> None:
        """Completions are there; they were begun at `since` (of `now`)."""
        self.generation = now() - since

    def rewarded(self) -> None:
        """The last reward is there."""
        self.rewarded_at = now()

    def optimized(self) -> None:
        """An optimizer step is done."""
        self.optimized_at = now()

    def count(self, name: str, amount: float) -> None:
        """Add to a count of this batch."""
        self.counts[name] = self.counts.get(name, 0) + amount


class _Profile:
    """Where a batch spends its time, by torch operator and by Python function, written as text."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.python = cProfile.Profile()
        self.stack = contextlib.ExitStack()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.torch = self.stack.enter_context(torch.profiler.profile(activities=activities))
        self.python.enable()

    def close(self) -> None:
        """Stop and write the file."""
        self.python.disable()
        self.stack.close()
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        operators = self.torch.key_averages().table(sort_by=order, row_limit=ROWS, max_name_column_width=60)
        text = io.StringIO()
        pstats.Stats(self.python, stream=text).strip_dirs().sort_stats("tottime").print_stats(ROWS)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        note = "One batch of rlexp under two profilers, which slow it down: shares count, not seconds.\n\n"
        lines = [line.rstrip() for line in f"{note}{operators}\n{text.getvalue()}".splitlines()]
        self.file.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
