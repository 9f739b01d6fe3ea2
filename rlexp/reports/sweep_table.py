"""The table of a sweep, or of any folder of runs: what differed, and what came out."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlexp.config.errors import UserError
from rlexp.records.sweep import recorded_jobs, stop_mark
from rlexp.reports.run_view import RunView, read_run

RESULTS = ("status", "steps", "reward", "accuracy_start", "accuracy_end", "accuracy_best", "seconds")
"""Columns of results. reward is the mean over the last REWARD_STEPS logged steps"""
REWARD_STEPS = 10
LARGER_FIRST = ("steps", "reward", "accuracy_start", "accuracy_end", "accuracy_best")

Value = str | float | int | None


@dataclass
class Row:
    """One job."""

    name: str
    number: int | None
    """of the job in its sweep, from 1; None for a run that is no job of it"""
    choices: dict[str, str]
    """override key -> value"""
    results: dict[str, Value] = field(default_factory=dict)
    reason: str = ""
    run: RunView | None = None
    """its folder as read from the disk, None without one"""

    @property
    def objective(self) -> float | None:
        """What a sweeper that optimises looks at: the held-out accuracy at the end, else the reward."""
        for name in ("accuracy_end", "reward"):
            value = self.results.get(name)
            if value is not None:
                return float(value)
        return None


@dataclass
class Table:
    """All jobs. keys: the overrides that are not the same in all of them, in order of appearance."""

    rows: list[Row]
    keys: list[str]

    @property
    def columns(self) -> list[str]:
        """What people see: the numbers of jobs, for a sweep; what differs, else the names of the runs; and the results."""
        numbers = ["job"] if any(row.number is not None for row in self.rows) else []
        return [*numbers, *(self.keys or ["run"]), *RESULTS]

    def value(self, row: Row, column: str) -> Value:
        """A cell."""
        own: dict[str, Value] = {"run": row.name, "job": row.number}
        return own[column] if column in own else row.results[column] if column in RESULTS else row.choices.get(column)

    def sort(self, column: str) -> None:
        """Order the rows by a column: accuracy, reward and steps from the largest, others upwards, empty cells last. Raises UserError for no such column."""
        column = "accuracy_end" if column == "accuracy" else column
        there = list(dict.fromkeys(["run", *self.columns]))
        if column not in there:
            raise UserError(f"--sort {column}: no such column; there are {', '.join(there)}")
        filled = [row for row in self.rows if self.value(row, column) is not None]
        empty = [row for row in self.rows if self.value(row, column) is None]
        self.rows = sorted(filled, key=lambda row: _order(self.value(row, column)), reverse=column in LARGER_FIRST) + empty


def read_sweep(folder: Path) -> Table:
    """The jobs of a sweep, those without a run folder too; without sweep.json, all run folders in it. Raises UserError when there are none."""
    jobs = recorded_jobs(folder)
    found = sorted(path.name for path in folder.iterdir() if (path / "status.json").is_file()) if folder.is_dir() else []
    numbers = {name: number for number, name in enumerate(jobs, start=1)}
    rows = [_row(folder / name, numbers.get(name), jobs.get(name, {})) for name in dict.fromkeys([*jobs, *found])]
    if not rows:
        raise UserError(f"{folder} holds no runs: give a sweep's folder, e.g. outputs/sweeps/NAME, or a folder of run folders")
    keys = dict.fromkeys(key for row in rows for key in row.choices)
    return Table(rows, [key for key in keys if len({row.choices.get(key) for row in rows}) > 1])


def _row(path: Path, number: int | None, job: Mapping[str, Any]) -> Row:
    overrides, reason = job.get("overrides"), str(job.get("reason", ""))
    if not (path / "status.json").is_file():
        results: dict[str, Value] = dict.fromkeys(RESULTS)
        results["status"] = "stopped" if stop_mark(path).exists() else "failed" if reason else "not started"
        return Row(path.name, number, _choices(overrides or [], path.parent), results, reason)
    run = read_run(path)
    results = {
        "status": run.state,
        "steps": run.steps,
        "reward": run.last("reward", window=REWARD_STEPS),
        "accuracy_start": run.evaluation("start"),
        "accuracy_end": run.evaluation("end"),
        "accuracy_best": run.evaluation("best"),
        "seconds": run.seconds,
    }
    why = str(run.status.get("reason", "")) or ("its process is gone" if run.state == "died" else reason if run.state != "finished" else "")
    return Row(path.name, number, _choices(overrides if overrides is not None else run.overrides, path.parent), results, why, run)


def _choices(overrides: Sequence[str], folder: Path) -> dict[str, str]:
    """Key -> value of the overrides that say what a run is, not how its sweep is run; paths as seen from the folder."""
    here = f"{folder.absolute()}/"
    pairs = [(key.lstrip("+~"), value) for key, _, value in (override.partition("=") for override in overrides)]
    chosen = {key: value for key, value in pairs if key != "sweep" and not key.startswith("sweep.")}
    return {key: value.strip('"').removeprefix(here) if here in value else value for key, value in chosen.items()}


def _order(value: Value) -> tuple[int, float, str]:
    """Numbers by size, also those written as text in an override; then texts."""
    try:
        return (0, float(value), "")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return (1, math.inf, str(value))


def text_table(table: Table) -> str:
    """The table for a terminal."""
    columns = table.columns
    cells = [columns, *([cell_text(table.value(row, column)) for column in columns] for row in table.rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    left = len(columns) - len(RESULTS) + 1  # texts, and the status
    lines = [
        "  ".join(cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def reasons_text(table: Table) -> str:
    """Why jobs did not finish, a paragraph each; empty when all did."""
    return "".join(f"\n{' '.join(row.choices.get(key, '') for key in table.keys) or row.name}: {row.reason}\n" for row in table.rows if row.reason)


def csv_table(table: Table) -> str:
    """The table as CSV, all numbers in full, with the reasons."""
    columns = list(dict.fromkeys(["run", *table.columns]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "reason"])
    for row in table.rows:
        writer.writerow([*("" if (value := table.value(row, column)) is None else value for column in columns), row.reason])
    return out.getvalue()


def cell_text(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) and value < 100 else f"{value:.0f}" if isinstance(value, float) else str(value)
