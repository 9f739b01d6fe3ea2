"""Jobs of two nodes: ranks on both, one of which may die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Programs
from run_folders import metrics, status
from slurm_here import Slurm, Sweep, until
from small_runs import Cli

from scripts.drill import ranks_of

Tell = Callable[[str], None]
TWO_BY_TWO = ["strategy=ddp", "strategy.timeout=300", "cluster.nodes=2", "cluster.processes_per_node=2"]
SHORT = ["trainer.max_steps=3", "evaluation=none"]


@pytest.mark.rows("GRPO-177", "GRPO-178", "GRPO-179", "GRPO-180", "RLOO-056")
def test_two_nodes_of_two_processes(slurm: Slurm, tmp_path: Path, programs: Programs, tell: Tell) -> None:
    sweep = Sweep(slurm, tmp_path, *SHORT, *TWO_BY_TWO)
    code, out, err = sweep.run()
    assert code == 0, out + err + sweep.logs()
    (run,) = sweep.runs
    assert status(run)["processes"] == 4
    cli = Cli(programs, tmp_path / "one")
    cli.folder.mkdir()
    assert cli.train(*SHORT).code == 0
    for ours, alone in zip(metrics(run), metrics(cli.run), strict=True):
        assert ours["loss"] == pytest.approx(alone["loss"], abs=1e-5) and ours["reward"] == pytest.approx(alone["reward"], abs=1e-6)
    tell("a 2-node x 2-process job, world size 4, losses equal")
    until(lambda: not slurm.leftovers(), 30, str(slurm.leftovers()))


def test_a_rank_of_the_second_node_dies(slurm: Slurm, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "reward.terms.digits.sleep=0.2", "trainer.max_steps=200", "evaluation=none", *TWO_BY_TWO).start()
    until(lambda: sweep.steps() >= 1, what=sweep.logs())
    (run,) = sweep.runs
    ranks = ranks_of(run)
    assert sorted(ranks) == [0, 1, 2, 3]
    os.kill(ranks[3], signal.SIGKILL)
    began = time.monotonic()
    until(lambda: status(run)["status"] == "failed", 60, sweep.logs())
    assert status(run)["reason"] == "rank 3 was killed by SIGKILL (out of memory?)"
    code, out, err = sweep.wait()
    assert code == 1 and "rank 3 was killed by SIGKILL" in err and time.monotonic() - began < 90, out + err
    assert "rank 3 was killed" in (sweep.path / "logs" / f"{run.name}.log").read_text(), "on the console of rank 0"
    until(lambda: not slurm.leftovers(), 30, str(slurm.leftovers()))


@pytest.mark.slow  # most of its forty seconds Python starts on two cores, twice
def test_two_nodes_are_preempted_and_go_on(slurm: Slurm, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "reward.terms.digits.sleep=0.2", "trainer.max_steps=12", "evaluation=none", *TWO_BY_TWO).start()
    until(lambda: sweep.steps() >= 2, what=sweep.logs())
    slurm.ask("scancel", "--signal=USR2", sweep.job())
    code, out, err = sweep.wait()
    assert code == 0 and out.endswith("\n1 finished, 0 failed\n"), out + err + sweep.logs()
    (run,) = sweep.runs
    assert "continuing from step" in (run / "train.log").read_text()
    assert [line["step"] for line in metrics(run)] == list(range(1, 13))
