"""The section of docs/results.md about early stopping says what its searches found, and that is what was to be shown."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from doc_pages import ROOT
from run_configs import composed


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/results_halving.py."""
    spec = importlib.util.spec_from_file_location("results_halving_script", ROOT / "scripts" / "results_halving.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, accuracies: dict[int, float]) -> None:
    folder.mkdir(parents=True)
    lines = [{"step": step, "split": "eval", "accuracy": accuracy} for step, accuracy in accuracies.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def made_up(script: ModuleType, outputs: Path) -> dict:
    """A search of two settings beside its grid: the better one was found in 90 of 120 steps."""
    for halving, curves in ((False, [{30: 0.5, 60: 0.9}, {30: 0.6, 60: 0.8}]), (True, [{30: 0.5}, {30: 0.6, 60: 0.8}])):
        sweep = outputs / "sweeps" / script.name_of(1, halving)
        for name, accuracies in zip("ab", curves, strict=True):
            write_run(sweep / name, accuracies)
        jobs = {name: {"overrides": [f"loss={loss}", "optimizer.learning_rate=0.001"]} for name, loss in (("a", "dapo"), ("b", "grpo"))}
        (sweep / "sweep.json").write_text(json.dumps(jobs))
    return script.search_of(1, outputs, "2 settled earlier, 0 run")


def test_what_is_read_and_what_is_missed(script: ModuleType, tmp_path: Path) -> None:
    search = made_up(script, tmp_path)
    assert (search["found"], search["accuracy"], search["total"]) == ("grpo 0.001", 0.8, 120)
    assert script.figures(search) == {"best": 0.9, "share": pytest.approx(0.8 / 0.9), "steps": 90, "cost": 0.75}
    assert script.problems({"searches": [search]}) == [
        "halving, seed 1: 0.800 is less than 0.98 of the grid's best, 0.900",
        "halving, seed 1: 90 steps are more than 0.5 of 120",
    ]
    other = copy.deepcopy(search) | {"again": "1 settled earlier, 1 run"}
    other["settings"]["dapo 0.001"]["same"] = False
    assert script.problems({"searches": [other]})[2:] == [
        "halving, seed 1: the second start said 1 settled earlier, 1 run",
        "halving, seed 1: dapo 0.001 was not the same run in both sweeps",
    ]


def test_what_is_claimed(script: ModuleType) -> None:
    """A setting within 2 % of the full grid's best in at most half of its steps, for each of three seeds."""
    data = json.loads((ROOT / "docs" / "data" / "halving" / "searches.json").read_text(encoding="utf-8"))
    assert script.problems(data) == [] and [search["seed"] for search in data["searches"]] == list(script.SEEDS)
    assert all(len(search["settings"]) == 8 for search in data["searches"])
    assert "\n".join(script.render(data)).strip() in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_its_commands_are_valid(script: ModuleType) -> None:
    for halving in (False, True):
        first = [override.split(",")[0] for override in script.overrides(1, halving)]
        config = composed(*first)
        assert (config.sweep.method, config.trainer.max_steps, config.evaluation.steps) == ("halving" if halving else "grid", 60, 10)
