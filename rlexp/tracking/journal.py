"""Everything rank 0 records of a run, behind the three calls the trainer makes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.config.run import RunConfig
from rlexp.records.rollout import Rollout
from rlexp.tracking.console import ConsoleLog
from rlexp.tracking.hub import Memory, TrackerHub
from rlexp.tracking.jsonl import JsonlLog
from rlexp.tracking.rollouts import write_rollouts
from rlexp.tracking.writer import Writer


class Journal:
    """metrics.jsonl (every step), rollouts/*.parquet, the console and the trackers. Made on rank 0 only.

    The console answers at once, so that its lines keep their place among log messages. Files are written by a thread, in order, and trackers
    have threads of their own: what a call was given is on the disk after the next `flush`. A write that failed raises at the next call.

    folder: the run folder, whose metrics.jsonl is already cut back to `step`. step: last step that counts, 0 for a new run.
    """

    def __init__(self, config: RunConfig, folder: Memory, total_steps: int, step: int = 0) -> None:
        self._config, self._folder, self._total = config, folder, total_steps
        self._jsonl = JsonlLog(folder.path / "metrics.jsonl")
        self._writer = Writer(folder.path)
        self._console = ConsoleLog(total_steps, step)
        self._trackers = TrackerHub(config, folder, step)

    def log(self, step: int, split: str, metrics: Mapping[str, float], time_s: float) -> None:
        """Metrics of a step (split train) or of an evaluation (split eval). time_s: seconds of training so far, over all lives of the run."""
        self._writer.put(functools.partial(self._jsonl.log, step, split, dict(metrics), time_s))
        self._console.log(step, split, metrics)
        self._trackers.log(step, split, metrics)

    def rollouts(self, step: int, split: str, rollouts: Sequence[Rollout]) -> None:
        """Rollouts of the generation batch whose first step this is, or of an evaluation; written when they are due."""
        if split != "train" or self._due(step):
            self._writer.put(functools.partial(write_rollouts, self._folder.path, step, split, [_snapshot(rollout) for rollout in rollouts]))
        if split == "train" and self._config.tracker.completions:
            self._console.completions(step, rollouts, self._config.tracker.completions)

    def flush(self) -> int:
        """Wait for everything to be written and bring metrics.jsonl to the disk; returns its length in bytes."""
        self._writer.flush()
        return self._jsonl.offset()

    def finish(self, exit_code: int, summary: Mapping[str, Any] | None = None) -> None:
        """Close everything. summary: of summary.json, for the last lines on the console; None when the run failed."""
        try:
            self._writer.close()
            self._jsonl.close()
        finally:
            if summary is None:
                self._console.close()
            else:
                self._console.closing(summary, self._folder.path)
            self._trackers.finish(exit_code)

    def _due(self, step: int) -> bool:
        """Whether one of the steps made from this batch is the first, the last or a multiple of tracker.rollout_steps."""
        last = step + self._config.trainer.steps_per_batch * self._config.algorithm.num_iterations - 1
        every = self._config.tracker.rollout_steps
        return step == 1 or step <= self._total <= last or last // every > (step - 1) // every


def _snapshot(rollout: Rollout) -> Rollout:
    """The rollout as it is now. Its turns, task and texts are shared: nobody changes those."""
    return dataclasses.replace(rollout, rewards=dict(rollout.rewards), extra=dict(rollout.extra))
