"""A run folder as read from the disk, whatever state the run is in."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlexp.config.errors import UserError
from rlexp.tracking.jsonl import read_lines


@dataclass
class RunView:
    """What a run folder says. Files that are not there (yet) give empty values."""

    path: Path
    status: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """lines of metrics.jsonl"""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def state(self) -> str:
        """finished, failed, preempted, running, or died: `running` says the file, but its process on this machine is gone. Empty without status.json."""
        state = str(self.status.get("status", ""))
        if state == "running" and self.status.get("host") == socket.gethostname() and not _exists(int(self.status.get("pid", 0))):
            return "died"
        return state

    @property
    def steps(self) -> int:
        """Last step in the metrics."""
        return max((int(line["step"]) for line in self.metrics), default=0)

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return float(self.summary.get("seconds") or (self.metrics[-1]["time_s"] if self.metrics else 0.0))

    def series(self, name: str, split: str = "train") -> list[tuple[float, float]]:
        """(step, value) of a metric in order; lines without it, or with null, are left out."""
        return [(line["step"], line[name]) for line in self.metrics if line["split"] == split and line.get(name) is not None]

    def names(self, split: str = "train") -> list[str]:
        """Metrics that occur, in order of first appearance."""
        return list(dict.fromkeys(name for line in self.metrics if line["split"] == split for name in line if name not in ("step", "split", "time_s")))

    def last(self, name: str, split: str = "train", window: int = 1) -> float | None:
        """Mean of the last `window` values of a metric, None when there are none."""
        values = [value for _, value in self.series(name, split)[-window:]]
        return sum(values) / len(values) if values else None

    def evaluation(self, when: str, name: str = "accuracy") -> float | None:
        """A metric of the evaluation at start, at the end (so far), or the best; from summary.json, else from the metrics."""
        kept = (self.summary.get("evaluation") or {}).get(when) or {}
        if kept.get(name) is not None:
            return float(kept[name])
        values = [value for _, value in self.series(name, "eval")]
        if not values:
            return None
        return {"start": values[0], "end": values[-1], "best": max(values)}[when]


def read_run(path: Path) -> RunView:
    """Read a run folder. Raises UserError when it is none."""
    if not (path / "status.json").is_file() and not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not a run folder: it has neither status.json nor config.yaml")
    overrides = path / "overrides.txt"
    return RunView(
        path=path,
        status=_json(path / "status.json"),
        summary=_json(path / "summary.json"),
        overrides=overrides.read_text(encoding="utf-8").splitlines() if overrides.is_file() else [],
        metrics=read_lines(path / "metrics.jsonl"),
    )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
