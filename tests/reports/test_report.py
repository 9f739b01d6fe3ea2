"""report.html."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlexp.config.errors import UserError
from rlexp.reports.html import phase_seconds, write_report
from rlexp.reports.run_view import read_run
from rlexp.reports.svg import Axis, Line, chart, number, smoothed, thin


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; fails on a tag that closes nothing."""

    VOID = ("meta", "br")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report(finished_run: Path) -> Path:
    """The page of the finished run."""
    return write_report(finished_run)


def test_the_page_stands_alone(report: Path) -> None:
    page = Page(report)
    assert page.links == [] and not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import", report.read_text(encoding="utf-8"))


def test_what_the_model_wrote_is_text(report: Path) -> None:
    source = report.read_text(encoding="utf-8")
    assert "<script>" not in source and "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; http://evil.example/" in source
    assert '<script>alert("x")</script> & http://evil.example/' in Page(report).text


def test_what_it_tells(report: Path) -> None:
    text = Page(report).text
    for part in (
        "finished",
        "0.340 → 0.898",
        "80optimizer steps",
        "1 min 01 s",
        "128k",
        "First 10 of step 1",
        "First 10 of step 80",
        "commit 0123abc",
        "torch 2.13.0",
        "(cut off)",
    ):
        assert part in text, part
    for title in (
        "Held-out accuracy",
        "Reward",
        "Entropy",
        "Completion length",
        "Gradient norm",
        "Loss",
        "Learning rate",
        "Generated tokens per second",
        "Clipped share of tokens",
    ):
        assert title in text
    assert "KL to the reference" not in text  # it was null throughout
    assert "run.seed=1 trainer.max_steps=80" in text and "optimizer.learning_rate0.00031e-06" in text  # key, value, default
    assert Page(report).tags.count("tr") >= 20 + 2


def test_phase_times_add_up(finished_run: Path) -> None:
    phases = phase_seconds(read_run(finished_run))
    assert list(phases) == ["update", "generation", "evaluation", "reward", "score"]
    assert phases["generation"] == pytest.approx(80 * 0.31) and phases["evaluation"] == pytest.approx(5 * 0.9)


def test_an_unfinished_run_has_a_page_too(finished_run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(finished_run / "config.yaml", bare)
    (bare / "status.json").write_text('{"status": "failed", "reason": "ValueError: <b>no</b>"}')
    page = Page(write_report(bare))
    assert "No step has been logged" in page.text and "ValueError: <b>no</b>" in page.text and "b" not in set(page.tags) - {"b"}
    with pytest.raises(UserError, match="is not a run folder"):
        write_report(tmp_path)


def test_a_config_of_another_version_does_not_spoil_the_page(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    with open(tmp_path / "run" / "config.yaml", "a") as file:
        file.write("unknown_section: 1\n")
    assert "unknown_section" in Page(write_report(tmp_path / "run")).text


def test_the_program(finished_run: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "rlexp.report", str(finished_run)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{finished_run / 'report.html'}\n"
    done = subprocess.run([sys.executable, "-m", "rlexp.report", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == f"error: {tmp_path} is not a run folder: it has neither status.json nor config.yaml\n"
    code = "import sys; import rlexp.reports.html, rlexp.reports.sweep_table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_axes_have_round_ticks() -> None:
    axis = Axis.over([0.13, 0.87], 0, 100)
    assert axis.ticks == pytest.approx((0.0, 0.2, 0.4, 0.6, 0.8, 1.0)) and (axis.low, axis.high) == pytest.approx((0.0, 1.0))
    assert Axis.over([1, 150], 0, 100, whole=True).ticks == (50.0, 100.0, 150.0)
    assert Axis.over([5e-4], 0, 100).place(5e-4) == 50
    assert Axis.over([7, 7], 0, 100, whole=True).ticks == (6.0, 7.0, 8.0)
    assert [number(value) for value in (0.0, 5e-4, 1.5e-6, 0.42, 12.0, 35000.0, 1.2e6, -0.25)] == ["0", "5e-4", "1.5e-6", "0.42", "12", "35k", "1.2M", "-0.25"]


def test_long_lines_are_thinned_and_smoothed_without_lag() -> None:
    line = [(float(x), 2.0 * x) for x in range(1000)]
    thinned = thin(line)
    assert len(thinned) == 300 and thinned[0] == (1.0, 2.0) and sum(y for _, y in thinned) / 300 == pytest.approx(999, rel=1e-2)
    assert [y for _, y in smoothed(thinned)] == pytest.approx([y for _, y in thinned], abs=0.5)
    assert thin(line[:5]) == line[:5]
    assert chart("empty", [Line("a", [])]) == ""
    assert chart("a<b", [Line("x", [(1, 1.0)]), Line("<y>", [(1, 2.0)])]).count("&lt;") == 4  # title twice, legend, and where the mouse points
