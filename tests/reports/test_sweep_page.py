"""sweep.html: the curves of all runs over one another."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from made_up_runs import write_run

from rlexp.records.sweep import record_jobs
from rlexp.reports.svg import COLOURS, palette
from rlexp.reports.sweep_page import write_page
from rlexp.reports.sweep_table import read_sweep


class Tags(HTMLParser):
    """Opening and closing tags in order; external references."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [str(value) for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_curves_and_rows_of_every_run(tmp_path: Path) -> None:
    sweep = tmp_path / "my<sweep>"
    names = [f"job{number}" for number in range(1, 9)]
    for number, name in enumerate(names[:-1], start=1):
        write_run(sweep / name, steps=20 * number, seed=number, status="paused" if number == 1 else "finished", reason="not <promoted>" if number == 1 else "")
    record_jobs(sweep, {name: [f"run.seed={number}", "sweep=halving"] for number, name in enumerate(names, start=1)})
    table = read_sweep(sweep)
    assert write_page(sweep, table) == f"curves: {sweep / 'sweep.html'}"
    page = (sweep / "sweep.html").read_text()
    parser = Tags()
    parser.feed(page)
    assert parser.open == [] and parser.references == []
    accuracy, reward = re.findall(r"<figure>.*?</figure>", page)[:2]
    assert "<b>Held-out accuracy</b>" in accuracy and "<b>Reward in training" in reward
    labels = [f"{number}: {number}" for number in range(1, 8)]  # the eighth has not begun
    assert re.findall(r"● ([^<]+)</span>", accuracy) == labels == re.findall(r"<title>(\d: \d)</title>", reward)
    colours = re.findall(r'<span style="color:([^"]+)">', accuracy)
    assert len(set(colours)) == 7 and colours == re.findall(r'<span style="color:([^"]+)">', reward), "a run has one colour in all charts"
    assert "my&lt;sweep&gt;" in page and "not &lt;promoted&gt;" in page and "<sweep>" not in page and page.count("<tr>") == 9


def test_nothing_logged_yet_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    sweep = tmp_path / "s"
    record_jobs(sweep, {"a": ["run.seed=1"]})
    write_page(sweep, read_sweep(sweep))
    assert "No step has been logged." in (sweep / "sweep.html").read_text()
    (sweep / "sweep.html").unlink()
    (sweep / "sweep.html").mkdir()
    said = write_page(sweep, read_sweep(sweep))
    assert said.startswith(f"the curves cannot be written to {sweep / 'sweep.html'}: ") and not list(sweep.glob("*.tmp")), "the sweep itself is not harmed"


def test_colours() -> None:
    assert list(palette(3)) == list(COLOURS[:3])
    assert len(set(palette(24))) == 24
