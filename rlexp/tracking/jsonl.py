"""metrics.jsonl: one JSON object per logged step, the record that everything else is drawn from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESERVED = ("step", "split", "time_s")


class JsonlLog:
    """Appends lines to metrics.jsonl. A line is visible to readers as soon as `log` returns.

    path: the file; on a resume it must already be cut back to the checkpoint (RunFolder.truncate_metrics).
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115 (open for the whole run)

    def log(self, step: int, split: str, metrics: Mapping[str, float], time_s: float) -> None:
        """Write one line. NaN and infinities, which JSON lacks, become null; a metric named like one of our keys is put under `metrics/`."""
        line: dict[str, Any] = {"step": step, "split": split, "time_s": round(time_s, 3)}
        for name, value in metrics.items():
            line[f"metrics/{name}" if name in RESERVED else name] = plain(value)
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def offset(self) -> int:
        """Bring the file to the disk and return its length in bytes: a checkpoint stores it, so that a resume can cut the file back to it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Bring everything to the disk and close."""
        self.offset()
        self._file.close()


def plain(value: Any) -> float | int | None:
    """A number as JSON can hold it (NumPy scalars and 0-d tensors included), null for NaN and infinities."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a metrics.jsonl, [] when there is none. A last line cut off by a crash is left out."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]
