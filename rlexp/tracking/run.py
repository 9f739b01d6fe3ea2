"""What trackers learn about the run, and the contract they keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackingRun:
    """A run as its trackers see it."""

    name: str
    """name of the run folder"""
    folder: Path
    """the run folder; a tracker may keep files below it"""
    id: str
    """made once and kept in the run folder: the same after a resume"""
    config: dict[str, Any] = field(default_factory=dict)
    """the whole configuration as plain data"""
    group: str | None = None
    """name of the sweep the run belongs to"""
    timeout: float = 8.0
    """seconds one call may take (tracker.timeout)"""
    step: int = 0
    """last step that counts, 0 for a new run; steps above it may have been sent by an earlier life of the run and come again"""


class Tracker(Protocol):
    """What a tracker must do. Each call runs in a thread of its own, may take `tracker.timeout` seconds and may raise."""

    def start(self, run: TrackingRun) -> None:
        """Open the run, or open it again after a resume."""

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Send the metrics of a step. Names of other splits than `train` already carry their prefix, e.g. `eval/accuracy`."""

    def finish(self, exit_code: int) -> None:
        """Close the run; exit_code as the process will end."""
