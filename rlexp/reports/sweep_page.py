"""sweep.html: the curves of all runs of a sweep over one another, and its table, in one page that needs neither network nor scripts."""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from pathlib import Path

from rlexp.reports.run_view import RunView
from rlexp.reports.style import CSS
from rlexp.reports.svg import Line, Points, chart, palette, smoothed
from rlexp.reports.sweep_table import Table, cell_text

PAGE = "sweep.html"
LARGE = "\n.charts.large { grid-template-columns: repeat(auto-fit, minmax(min(100%, 540px), 1fr)); }\n"


def write_page(folder: Path, table: Table) -> str:
    """Write sweep.html into a sweep's folder (or any folder of runs) anew. Returns a line that says where it is, or why it is not there."""
    target, temporary = folder / PAGE, folder / f".{PAGE}.{os.getpid()}.tmp"
    try:
        temporary.write_text(page(folder.absolute().name, table), encoding="utf-8", errors="replace")
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        return f"the curves cannot be written to {target}: {error.strerror}"
    return f"curves: {target}"


def page(name: str, table: Table) -> str:
    """The whole page. Everything that comes from the runs is escaped."""
    body = "\n".join([f"<header><h1>{escape(name)}</h1></header>", _curves(table), _rows(table)])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{CSS}{LARGE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _curves(table: Table) -> str:
    runs = [(row.run, _label(table, place)) for place, row in enumerate(table.rows)]
    coloured = [(run, label, colour) for (run, label), colour in zip(runs, palette(len(runs)), strict=True) if run is not None]

    def over(title: str, points: Callable[[RunView], Points], dots: bool = False) -> str:
        return chart(title, [Line(label, points(run), dots, colour) for run, label, colour in coloured], last=False)

    main = over("Held-out accuracy", lambda run: run.series("accuracy", "eval"), dots=True)
    main += over("Reward in training (moving average)", lambda run: smoothed(run.series("reward")))
    names = dict.fromkeys(name for run, _, _ in coloured for name in run.names("eval") if name != "accuracy" and not name.startswith("perf/"))
    rest = "".join(over(name, lambda run, name=name: run.series(name, "eval"), dots=True) for name in names)  # type: ignore[misc]
    if not main and not rest:
        return '<h2>Curves</h2><p class="note">No step has been logged.</p>'
    more = f'<details><summary>All other metrics of evaluations</summary><div class="charts large">{rest}</div></details>' if rest else ""
    return f'<h2>Curves</h2><p class="note">Over optimizer steps.</p><div class="charts large">{main}</div>{more}'


def _label(table: Table, place: int) -> str:
    """What sets a run apart, as its line is called: `3: grpo 1e-4`."""
    row = table.rows[place]
    choices = " ".join(row.choices.get(key, "–") for key in table.keys) or row.name
    return choices if row.number is None else f"{row.number}: {choices}"


def _rows(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in (*table.columns, "reason"))
    lines = [
        "<tr>"
        + "".join(f"<td>{escape(cell_text(table.value(row, column)))}</td>" for column in table.columns)
        + f'<td class="soft">{escape(row.reason)}</td></tr>'
        for row in table.rows
    ]
    return f'<h2>Runs</h2><div class="box"><table><thead><tr>{head}</tr></thead>{"".join(lines)}</table></div>'
