"""A run trained with the loss of an installed third-party package."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import yaml
from programs import TESTS, Programs

SMALL = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=0", "evaluation=none", "reward=[digits]"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "algorithm.num_generations=4", "algorithm.num_iterations=2", "trainer.max_steps=4"),
    *("trainer.tokens_per_microbatch=200", "optimizer.learning_rate=0.05", "optimizer.schedule=constant", "checkpoint.steps=2", "run.name=r"),
]


def test_training_with_a_third_partys_loss(plugin_site: Path, programs: Programs, tmp_path: Path) -> None:
    paths = [str(plugin_site), str(TESTS), str(TESTS / "contracts" / "plugin")]

    def train(where: str, *overrides: str) -> list[dict]:
        env = {"RLEXP_OUTPUTS": str(tmp_path / where), "PYTHONPATH": os.pathsep.join(paths)}
        done = programs.train(*SMALL, *overrides, cwd=tmp_path, env=env)
        assert done.code == 0, done.err
        return [json.loads(line) for line in (tmp_path / where / "r" / "metrics.jsonl").read_text().splitlines()]

    free, pulled = train("free", "loss=mine", "loss.pull=0"), train("pulled", "loss=mine", "loss.pull=50")
    assert [line["step"] for line in pulled] == [1, 2, 3, 4] and all(math.isfinite(line["loss"]) for line in pulled)
    assert pulled[0]["loss"] == free[0]["loss"] and pulled[0]["grad_norm"] == pytest.approx(free[0]["grad_norm"], rel=1e-5), "(ratio - 1)^2 is flat at 1"
    assert pulled[1]["loss"] > free[1]["loss"] + 1e-3, "the second pass sees a ratio that has moved, and pays for it"
    saved = yaml.safe_load((tmp_path / "pulled" / "r" / "config.yaml").read_text())
    assert saved["loss"]["name"] == "mine" and saved["loss"]["pull"] == 50.0
    with_kl = train("kl", "loss=mine", "algorithm.beta=0.1")
    assert with_kl[0]["kl"] == 0.0 and with_kl[1]["kl"] > 0, "the KL term uses the ratio that the loss returns"
