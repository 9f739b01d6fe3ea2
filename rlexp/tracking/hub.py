"""All trackers of a run, behind one `log`."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rlexp.config.run import RunConfig
from rlexp.registry import TRACKERS
from rlexp.tracking.deadline import GuardedTracker, leave_at_exit
from rlexp.tracking.run import TrackingRun


class Memory(Protocol):
    """What the hub wants of a run folder (rlexp.launch.folder.RunFolder)."""

    path: Path

    @property
    def name(self) -> str: ...

    @property
    def sweep(self) -> str | None: ...

    def load(self, key: str) -> Any: ...

    def store(self, key: str, value: Any) -> None: ...


class TrackerHub:
    """Forwards metrics to the trackers of config.tracker.terms; made on rank 0 only.

    step: last step that counts (0, or the checkpoint's). Nothing a tracker does can raise here or take longer than `tracker.timeout`.
    """

    def __init__(self, config: RunConfig, folder: Memory, step: int = 0) -> None:
        self._steps = config.tracker.steps
        self._timeout = config.tracker.timeout
        self._trackers = []
        plain = dataclasses.asdict(config)
        for key, term in config.tracker.terms.items():
            run = TrackingRun(folder.name, folder.path, _identity(folder, key), plain, folder.sweep, config.tracker.timeout, step)
            tracker = GuardedTracker(key, TRACKERS.load(term.name)(term), config.tracker.timeout)
            tracker.start(run)
            self._trackers.append(tracker)

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step: of the training split every `tracker.steps` steps, of others always and with a prefix, `eval/reward`."""
        if split == "train" and step % self._steps:
            return
        prefix = "" if split == "train" else f"{split}/"
        named = {prefix + name: float(value) for name, value in metrics.items()}
        for tracker in self._trackers:
            tracker.log(step, split, named)

    def finish(self, exit_code: int) -> None:
        """End all trackers and wait for what is still queued, at most `tracker.timeout` seconds in all.

        A tracker that does not come to its end is left behind, and the process will not wait for it at its exit either.
        """
        for tracker in self._trackers:
            tracker.finish(exit_code)
        deadline = time.monotonic() + self._timeout
        left_behind = [tracker for tracker in self._trackers if not tracker.wait(max(0.0, deadline - time.monotonic()))]
        if left_behind:
            leave_at_exit(exit_code)


def _identity(folder: Memory, key: str) -> str:
    """The run's id at a tracker: made once, before the tracker first hears of the run, so that no crash can give a run two."""
    ids = folder.load("trackers") or {}
    if key not in ids:
        ids[key] = secrets.token_hex(8)
        folder.store("trackers", ids)
    return ids[key]
