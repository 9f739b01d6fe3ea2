"""Successive halving whose rungs are arrays of Slurm jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import status, train_steps
from slurm_here import Slurm, Sweep

Tell = Callable[[str], None]


@pytest.mark.slow  # half a minute; tests/launch/test_halving.py has the same with jobs of this machine
@pytest.mark.rows("GRPO-280")
def test_each_rung_is_an_array(slurm: Slurm, tmp_path: Path, tell: Tell) -> None:
    halving = ("sweep=halving", "sweep.metric=reward", "evaluation.steps=1", "trainer.max_steps=4", "optimizer.learning_rate=0.05,0.0")
    sweep = Sweep(slurm, tmp_path, *halving)
    code, out, err = sweep.run()
    assert code == 0, out + err + sweep.logs()
    assert out.endswith("6 of 8 steps trained\n0 settled earlier, 2 run\n") and "1 finished, 0 failed, 1 paused\n" in out
    ended = {status(run)["status"]: run for run in sweep.runs}
    assert train_steps(ended["finished"]) == [1, 2, 3, 4] and train_steps(ended["paused"]) == [1, 2]
    assert status(ended["paused"])["reason"].startswith("paused at step 2 by the sweep: not promoted at step 2 (reward ")
    jobs = {name: status(run)["slurm_job"] for name, run in ended.items()}
    assert jobs["finished"].partition("_")[0] != jobs["paused"].partition("_")[0], "the second rung is an array of its own"
    assert [rung["step"] for rung in json.loads((sweep.path / "halving.json").read_text())["rungs"]] == [2]
    assert all(slurm.state(job) == "COMPLETED" for job in jobs.values()), "a pause is no reason to requeue"
    tell("a halving sweep of two jobs, 6 of 8 steps")

    again = sweep.run()
    assert again[0] == 0 and again[1].endswith("\n2 settled earlier, 0 run\n") and "submitted" not in again[1]
