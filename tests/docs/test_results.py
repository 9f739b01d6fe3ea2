"""docs/results.md is what its data say, a claim that does not hold is found, and nothing of the machine goes in."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from doc_pages import ROOT
from made_up_runs import write_run


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/results.py, writing to a folder of the test."""
    spec = importlib.util.spec_from_file_location("results_script", ROOT / "scripts" / "results.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    return module


def wanted(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{"name": "sums", "command": None, "about": "It learns.", "claim": [], "ask": [], **changes})


def rendered(results: ModuleType) -> tuple[list, str]:
    found = [results.Result(path.parent) for path in sorted(results.DOCS.glob("data/*/result.json"))]
    return found, results.page(found)


def test_the_page_of_this_repository_is_up_to_date(results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "DOCS", ROOT / "docs")
    found, text = rendered(results)
    assert found and results.check(found, text) == []


def test_a_run_becomes_a_section(results: ModuleType, tmp_path: Path) -> None:
    results.add(write_run(tmp_path / "run"), wanted(claim=["reward_gain >= 0.15", "accuracy_end >= 0.99"]))
    found, text = rendered(results)
    rewards = [value for _, value in found[0].curve("reward")]
    assert f"| gain in mean reward | {sum(rewards[-5:]) / 5 - sum(rewards[:5]) / 5:.3f} |" in text
    assert "$ python -m rlexp.train run.seed=1 trainer.max_steps=80" in text
    assert "| held-out accuracy after training >= 0.99 | 0.898 | does not hold |" in text and "| gain in mean reward >= 0.15 |" in text
    kept = json.loads(found[0].text("status.json"))
    assert kept["git_commit"] == "0123abc" and not {"host", "pid"} & kept.keys()
    results.draw(found[0])
    (results.DOCS / "results.md").write_text(text)
    assert results.check(found, text) == ["sums: accuracy_end >= 0.99 does not hold, found 0.89831"]


def test_a_stale_page_is_shown(results: ModuleType, tmp_path: Path) -> None:
    results.add(write_run(tmp_path / "run"), wanted())
    found, text = rendered(results)
    results.draw(found[0])
    (results.DOCS / "results.md").write_text(text.replace("It learns.", "It flies."))
    assert "-It flies." in results.check(found, text) and "+It learns." in results.check(found, text)


def test_paths_of_this_machine_are_refused(results: ModuleType, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with open(run / "overrides.txt", "a") as file:
        file.write(f"data.path={tmp_path}/run\n")
    with pytest.raises(ValueError, match="names paths of this machine"):
        results.add(run, wanted())
    assert not (results.DOCS / "data").exists()


def test_only_finished_runs_and_known_claims(results: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is failed, not finished"):
        results.add(write_run(tmp_path / "failed", status="failed"), wanted())
    with pytest.raises(ValueError, match="a claim is FIGURE >= NUMBER"):
        results.add(write_run(tmp_path / "run"), wanted(claim=["reward > 1"]))


def test_the_first_run_in_the_readme_is_the_one_that_is_kept() -> None:
    evaluation = json.loads((ROOT / "docs" / "data" / "addition" / "summary.json").read_text())["evaluation"]
    before, after = (f"{evaluation[when]['accuracy']:.3f}" for when in ("start", "end"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"held-out accuracy {before} -> {after}\n" in readme and f"held-out accuracy goes from {before} to {after}" in readme
