"""The log of ranks other than 0."""

from __future__ import annotations

from typing import Any

from rlexp.records.rollout import Rollout


class SilentLog:
    """Takes everything and writes nothing: only rank 0 keeps the run's records."""

    def log(self, step: int, split: str, metrics: dict[str, float], time_s: float) -> None:
        """Nothing."""

    def rollouts(self, step: int, split: str, rollouts: list[Rollout]) -> None:
        """Nothing."""

    def flush(self) -> int:
        """There is no file."""
        return 0

    def finish(self, exit_code: int, summary: Any = None) -> None:
        """Nothing to close."""
