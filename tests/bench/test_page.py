"""docs/benchmarks.md is what its data say, written twice alike, and names nothing of the machine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import measure, render
from scripts.bench.figures import as_dict, figures
from scripts.bench.machine import machine
from scripts.bench.workloads import WORKLOADS

MACHINE = {
    "device": "a processor",
    "cuda": False,
    "threads": 2,
    "load": 0.1,
    "python": "3.11.9",
    "commit": "0123abc",
    "versions": {"torch": "2.13.0", "trl": "1.16.0"},
}


def result(name: str) -> dict[str, Any]:
    """A result as measure.against_trl returns it, with the machine."""
    ours = [{"update": 1.0, "generation": 2.0, "step": 3.0, "memory": 2**20, "generated": 280, "forwarded": 1000, "trained": 280, "pairs": 10}] * 3
    theirs = [{**record, "update": 4.0, "step": 6.0, "memory": 2**22, "forwarded": 5000} for record in ours]
    workload = WORKLOADS[name]
    return {
        "machine": MACHINE,
        "overrides": [],
        "workload": {**workload.__dict__},
        "model": {"parameters": 917_000, "prompt_tokens": [200, 200]},
        "trl_batch": 8,
        "trl_search": {"4": 2.0, "8": 1.5},
        "gradient": {"cosine": 0.99999994, "norm_ratio": 1.0},
        "figures": as_dict(figures(ours, theirs, workload.goals)),
        "rlexp": ours,
        "trl": theirs,
        "profile": None,
    }


def test_the_page_of_this_repository_is_up_to_date() -> None:
    assert render.PAGE.read_text(encoding="utf-8") == render.text_of(render.DATA)


def test_nothing_of_the_machine() -> None:
    for path in render.DATA.glob("*"):
        found = re.findall(r"(?<![\w.:/~])/(?:[\w.+=-]+/)+[\w.+=-]*", path.read_text(encoding="utf-8"))
        assert [one for one in found if Path(one).exists()] == [], path.name
    assert machine({"gpu": None, "cuda": False}, 0.1).keys() == MACHINE.keys()


def test_a_result_becomes_a_section(tmp_path: Path) -> None:
    (tmp_path / "W1.json").write_text(json.dumps(result("W1")))
    text = render.text_of(tmp_path)
    assert "| W1 ragged, shared prompt | 4.00 (>= 3.5: ok) | 1.00 (>= 1.5: below) | 2.00 (>= 2.3: below) | 0.25 (<= 0.8: ok) |" in text
    assert "| update | 1.000 s | 4.000 s | 4.00 | 4.00 to 4.00 | >= 3.5 | ok |" in text
    assert "| rlexp | 280 | 1,000 | 280 | 4.4 |" in text and "Gradient cosine 0.9999999, ratio of norms 1.00000." in text
    assert render.text_of(tmp_path) == text


def test_notes_come_last(tmp_path: Path) -> None:
    (tmp_path / render.NOTES).write_text("## What limits it\n\nNothing.\n")
    assert render.text_of(tmp_path).endswith("## What limits it\n\nNothing.\n")


def test_a_stale_page_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(render, "DATA", tmp_path)
    monkeypatch.setattr(render, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(sys, "argv", ["render"])
    assert render.main() == 0
    monkeypatch.setattr(sys, "argv", ["render", "--check"])
    assert render.main() == 0
    (tmp_path / "W2.json").write_text(json.dumps(result("W2")))
    assert render.main() == 1
    assert "+## W2: long prompt, short answer" in capsys.readouterr().err


def test_a_figure_below_its_goal_names_its_profile(capsys: pytest.CaptureFixture[str]) -> None:
    measure.report({**result("W1"), "profile": "W1_profile.txt"})
    lines = capsys.readouterr().out.splitlines()
    assert "  update: 4.00 (4.00-4.00; rlexp 1.000 s, other 4.000 s) (goal >= 3.5) ok" in lines
    assert "  generation: 1.00 (1.00-1.00; rlexp 2.000 s, other 2.000 s) (goal >= 1.5) below (profile: W1_profile.txt)" in lines
