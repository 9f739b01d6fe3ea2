"""The rollouts a report shows: some from the beginning and some from the end of training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

SHOWN = 20
LONGEST = 4000
"""Characters of a text; the parquet file has all"""


@dataclass(frozen=True)
class Shown:
    """One rollout."""

    prompt: str
    completion: str
    tokens: int
    reward: float | None
    advantage: float | None
    cut_off: bool


def shown_rollouts(folder: Path) -> list[tuple[str, list[Shown]]]:
    """(title, rollouts) for the first and the last file of training rollouts, SHOWN in all; [] when there are none."""
    files = sorted((folder / "rollouts").glob("step_*.parquet"), key=_step)
    if not files:
        return []
    if len(files) == 1:
        return [(f"First {SHOWN} of step {_step(files[0])}", _read(files[0], SHOWN))]
    half = SHOWN // 2
    return [(f"First {half} of step {_step(file)}", _read(file, half)) for file in (files[0], files[-1])]


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _read(path: Path, count: int) -> list[Shown]:
    # ParquetFile, not read_table, which imports pandas
    table = pq.ParquetFile(path).read(columns=["prompt", "completion", "ids", "reward", "advantage", "finish"]).slice(0, count)
    return [
        Shown(_cut(row["prompt"]), _cut(row["completion"]), len(row["ids"]), row["reward"], row["advantage"], row["finish"] == "length")
        for row in table.to_pylist()
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text)} characters)"
