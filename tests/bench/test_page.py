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
from scripts.bench.workloads import LOGITS, WORKLOADS

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


def test_what_is_measured_beside_the_workloads(tmp_path: Path) -> None:
    one = result("W4")
    limit = {"gemm": {"1024": 9e10, "2048": 1e11}, "best": 1e11, "share": 0.4321, "goal": 0.5, "verdict": "below"}
    sides = {"rlexp": {"4096": 200 * 2**20, "8192": 210 * 2**20}, "trl": {"4096": 1000 * 2**20, "8192": 1000 * 2**20}}
    head = {"case": vars(LOGITS), "bytes": sides, "ratio": 0.2, "growth": 1.05, "verdicts": {"ratio": "ok", "growth": "ok"}}
    rows = [{"grown": "max_new", "value": 1024, "figures": one["figures"]}]
    base = {"prompts": 4, "prompt_tokens": 64, "max_new": 64, "vocabulary": 1024}
    results = {
        "limit": {"limit": limit, "profile": "W4_profile.txt"},
        "logits": head,
        "scaling": {"rows": rows, "base": base, "trl_batch": 8},
        "W1_self": {**result("W1"), "outside": []},
    }
    for name, found in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": MACHINE, "overrides": ["trainer.threads=1"], **found}))
    text = render.text_of(tmp_path)
    assert "(100 GFLOP/s, squares of 2048) that the update reaches: 0.432 (goal >= 0.5: below)" in text and "(data/bench/W4_profile.txt)" in text
    assert "| rlexp | 200.0 MiB | 210.0 MiB |" in text and "rlexp's over TRL's: 0.200 (goal <= 0.3: ok)" in text
    assert "| longest completion 1,024 | 3.00 s | 6.00 s | 2.00 | 1 MiB | 4 MiB | 0.25 |" in text
    assert "| W1 | 4.000 | 1.000 | 2.000 | 0.250 | ok |" in text and "with `trainer.threads=1`." in text


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
