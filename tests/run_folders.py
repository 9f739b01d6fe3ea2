"""What two runs must have in common to be the same run, and small looks into run folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def final_weights(folder: Path) -> dict[str, str]:
    """Hash of the weights of every trained network in the last checkpoint."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "checkpoints" / "latest" / "weights").iterdir())}


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("time_s", "step_time") and not key.startswith("perf/")} for line in lines]


def rollouts(folder: Path) -> dict[str, str]:
    """Hash of every file of rollouts."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "rollouts").iterdir())}


def train_steps(folder: Path) -> list[int]:
    """The training steps in metrics.jsonl."""
    return [line["step"] for line in metrics(folder) if line["split"] == "train"]


def status(folder: Path) -> dict[str, Any]:
    """status.json."""
    return json.loads((folder / "status.json").read_text())
