"""The section of docs/results.md about self-distillation says what its curves say."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType

import pytest
from doc_pages import ROOT
from run_configs import composed


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/results_sdpo.py."""
    spec = importlib.util.spec_from_file_location("results_sdpo_script", ROOT / "scripts" / "results_sdpo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_step_at_the_goal(script: ModuleType) -> None:
    assert script.reached([0.1, 0.79, 0.8, 0.7, 0.9], 0.8) == 2 and script.reached([0.1], 0.8) is None


def test_the_verdict_counts_seeds(script: ModuleType) -> None:
    curves = {"SDPO": [[0.1, 0.8, 0.9], [0.1, 0.5, 0.8]], "GRPO": [[0.1, 0.2, 0.9], [0.1, 0.9, 0.9]]}
    data = {"goal": 0.8, "rows": [{"label": label, "rate": "3e-4", "curves": found} for label, found in curves.items()]}
    said = script.verdict(data)
    assert said.startswith("At 3e-4 SDPO is there first for 1 of 2 seeds.") and "1.5 steps on average for SDPO, 1.5 for GRPO" in said


def test_what_is_claimed(script: ModuleType) -> None:
    """With few rollouts a step SDPO needs fewer steps than GRPO, for each of three seeds at the experiment's learning rate."""
    data = json.loads((ROOT / "docs" / "data" / "sdpo" / "curves.json").read_text(encoding="utf-8"))
    assert "At 3e-4 SDPO is there first for 3 of 3 seeds" in script.verdict(data)
    assert len(data["rows"]) == 4 and all(len(row["curves"]) == 3 for row in data["rows"])
    assert "\n".join(script.render(data)) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8") + "\n"


def test_its_commands_are_valid(script: ModuleType) -> None:
    for weight in script.LABELS:
        config = composed(*script.overrides(weight, script.RATES[0], 1))
        assert (config.algorithm.name, config.algorithm.distillation_weight, config.rollout.prompts_per_batch) == ("sdpo", float(weight), 4)
