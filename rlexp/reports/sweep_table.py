"""The table of a sweep, or of any folder of runs: what differed, and what came out."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.reports.run_view import read_run
from rlexp.reports.sweep_folder import recorded_jobs

RESULTS = ("status", "steps", "reward", "accuracy_start", "accuracy_end", "accuracy_best", "seconds")
"""Columns of results. reward is the mean over the last REWARD_STEPS logged steps"""
REWARD_STEPS = 10
LARGER_FIRST = ("steps", "reward", "accuracy_start", "accuracy_end", "accuracy_best")

Value = str | float | int | None


@dataclass
class Row:
    """One job."""

    name: str
    choices: dict[str, str]
    """override key -> value"""
    results: dict[str, Value] = field(default_factory=dict)
    reason: str = ""

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

    def value(self, row: Row, column: str) -> Value:
        """A cell."""
        return row.name if column == "run" else row.results[column] if column in RESULTS else row.choices.get(column)

    def sort(self, column: str) -> None:
        """Order the rows by a column: accuracy, reward and steps from the largest, others upwards, empty cells last. Raises UserError for no such column."""
        column = "accuracy_end" if column == "accuracy" else column
        if column not in ("run", *self.keys, *RESULTS):
            raise UserError(f"--sort {column}: no such column; there are {', '.join(('run', *self.keys, *RESULTS))}")
        filled = [row for row in self.rows if self.value(row, column) is not None]
        empty = [row for row in self.rows if self.value(row, column) is None]
        self.rows = sorted(filled, key=lambda row: _order(self.value(row, column)), reverse=column in LARGER_FIRST) + empty


def read_sweep(folder: Path) -> Table:
    """The jobs of a sweep, those without a run folder too; without sweep.json, all run folders in it. Raises UserError when there are none."""
    jobs = recorded_jobs(folder)
    found = sorted(path.name for path in folder.iterdir() if (path / "status.json").is_file()) if folder.is_dir() else []
    rows = [_row(folder / name, jobs.get(name, {}).get("overrides"), jobs.get(name, {}).get("reason", "")) for name in dict.fromkeys([*jobs, *found])]
    if not rows:
        raise UserError(f"{folder} holds no runs: give a sweep's folder, e.g. outputs/sweeps/NAME, or a folder of run folders")
    keys = dict.fromkeys(key for row in rows for key in row.choices)
    return Table(rows, [key for key in keys if len({row.choices.get(key) for row in rows}) > 1])


def _row(path: Path, overrides: Sequence[str] | None, reason: str) -> Row:
    if not (path / "status.json").is_file():
        results: dict[str, Value] = dict.fromkeys(RESULTS)
        results["status"] = "failed" if reason else "not started"
        return Row(path.name, _choices(overrides or []), results, reason)
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
    return Row(path.name, _choices(overrides if overrides is not None else run.overrides), results, why)


def _choices(overrides: Sequence[str]) -> dict[str, str]:
    return {key.lstrip("+"): value for key, _, value in (override.partition("=") for override in overrides)}


def _order(value: Value) -> tuple[int, float, str]:
    """Numbers by size, also those written as text in an override; then texts."""
    try:
        return (0, float(value), "")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return (1, math.inf, str(value))


def text_table(table: Table) -> str:
    """The table for a terminal."""
    columns = [*(table.keys or ["run"]), *RESULTS]
    cells = [columns, *([_text(table.value(row, column)) for column in columns] for row in table.rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    left = len(columns) - len(RESULTS) + 1
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
    columns = ["run", *table.keys, *RESULTS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "reason"])
    for row in table.rows:
        writer.writerow([*("" if (value := table.value(row, column)) is None else value for column in columns), row.reason])
    return out.getvalue()


def _text(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) and value < 100 else f"{value:.0f}" if isinstance(value, float) else str(value)
