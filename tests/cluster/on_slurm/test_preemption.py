"""Runs that Slurm stops: they save, are requeued, go on in the same folder and end with the weights of a run that nobody stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Programs
from run_folders import final_weights, metrics, status, train_steps
from slurm_here import PATIENCE, Slurm, Sweep, until
from small_runs import Cli

Tell = Callable[[str], None]
STEPS = 10
SAME = [f"trainer.max_steps={STEPS}", "evaluation=none", "checkpoint.steps=4"]
LONG = ["reward.terms.digits.sleep=0.6", *SAME]
"""some seconds, most of them asleep in the reward"""


@pytest.fixture(scope="module")
def whole(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on this machine, uninterrupted."""
    cli = Cli(programs, tmp_path_factory.mktemp("whole"))
    done = cli.train(*SAME)
    assert done.code == 0, done.err
    return cli.run


def assert_same(run: Path, whole: Path) -> None:
    """The same steps, metrics and weights."""
    assert train_steps(run) == list(range(1, STEPS + 1))
    assert metrics(run) == metrics(whole) and final_weights(run) == final_weights(whole)


def begun(sweep: Sweep, steps: int = 3) -> Path:
    """The run folder, once it has made some steps."""
    until(lambda: sweep.steps() >= steps, what=sweep.logs())
    return sweep.runs[0]


@pytest.mark.cases("S53")
def test_usr2(slurm: Slurm, tmp_path: Path, whole: Path, tell: Tell) -> None:
    """With a tracker: the requeued run goes on under the same id. Its children are not hit by the signal, which Slurm sends to every process of the step."""
    tracker = ["tracker=[wandb]", "tracker.terms.wandb.mode=offline"]
    sweep = Sweep(slurm, tmp_path, *LONG, *tracker).start()
    run = begun(sweep)
    job = sweep.job()
    slurm.ask("scancel", "--signal=USR2", job)
    until(lambda: status(run)["status"] == "preempted", what=sweep.logs())
    assert status(run)["reason"] == "stopped by SIGUSR2"
    code, out, err = sweep.wait()
    assert code == 0 and out.endswith("\n1 finished, 0 failed\n"), out + err + sweep.logs()
    assert status(run)["slurm_job"] == job and "Restarts=1" in slurm.ask("scontrol", "show", "job", job)
    assert_same(run, whole)
    ids = {path.name.rpartition("-")[2] for path in run.rglob("offline-run-*") if path.is_dir()}
    assert len(ids) == 1, ids
    text = (sweep.path / "logs" / f"{run.name}.log").read_text()
    assert text.count("\n--- ") + text.startswith("--- ") == 2, "the log goes on behind what the first life wrote"
    tell("USR2, requeued, weights equal to an uninterrupted run")


def test_term_by_preemption(slurm: Slurm, tmp_path: Path, whole: Path, tell: Tell) -> None:
    """Jobs of a partition with precedence take the nodes. submitit ignores SIGTERM; the run does not, and Slurm requeues it by itself."""
    sweep = Sweep(slurm, tmp_path, *LONG, "checkpoint.steps=1000", "reward.terms.digits.sleep=1.5").start()  # time for the nodes to be taken
    run = begun(sweep)
    first = len(train_steps(run))
    urgent = subprocess.Popen(
        ["srun", "--partition=high", "--nodes=2", "--exclusive", "sleep", "1"], env=slurm.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: status(run)["status"] == "preempted", what=sweep.logs())
    saved = len(train_steps(run))
    assert status(run)["reason"] == "stopped by SIGTERM" and saved >= first
    code, out, err = sweep.wait()
    assert urgent.wait(PATIENCE) == 0
    assert code == 0 and out.endswith("\n1 finished, 0 failed\n"), out + err + sweep.logs()
    assert f"continuing from step {saved}" in (run / "train.log").read_text()
    assert_same(run, whole)
    tell("TERM by partition preemption, requeued, weights equal to an uninterrupted run")


def test_kill(slurm: Slurm, tmp_path: Path, whole: Path, tell: Tell) -> None:
    """Nobody could save: the requeued run goes on from its last checkpoint."""
    sweep = Sweep(slurm, tmp_path, *LONG)
    assert sweep.run("cluster.wait=false")[0] == 0
    run = begun(sweep, 5)
    job = sweep.job()
    os.kill(status(run)["pid"], signal.SIGKILL)
    until(lambda: slurm.state(job) == "FAILED", what=sweep.logs())
    assert status(run)["status"] == "running", "nobody could say more"
    slurm.ask("scontrol", "requeue", job)
    until(lambda: status(run)["status"] == "finished", what=sweep.logs())
    assert "continuing from step 4" in (run / "train.log").read_text()
    assert_same(run, whole)
    tell("SIGKILL, requeued, weights equal to an uninterrupted run")


FULL = """
import pathlib, time
from rlexp.launch.signals import stop_request
from rlexp.training import checkpoint

whole = checkpoint.save

def save(*arguments, **keywords):
    if stop_request().requested and not pathlib.Path("broken").exists():
        pathlib.Path("broken").touch()
        raise OSError(28, "No space left on device")
    return whole(*arguments, **keywords)

checkpoint.save = save

def score(completions):
    time.sleep(0.5)
    return [float(len(set(text[-1]["content"]))) for text in completions]
"""


def test_a_save_that_fails_is_requeued_all_the_same(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(FULL)
    reward = ["reward=[custom]", "reward.terms.custom.path=my_rewards.py:score"]
    sweep = Sweep(slurm, tmp_path, *reward, "trainer.max_steps=10", "evaluation=none", "checkpoint.steps=2").start()
    run = begun(sweep)
    slurm.ask("scancel", "--signal=USR2", sweep.job())
    code, out, err = sweep.wait()
    assert code == 0 and out.endswith("\n1 finished, 0 failed\n"), out + err + sweep.logs()
    assert (tmp_path / "broken").exists() and "no space left on the disk" in (run / "train.log").read_text()
    assert train_steps(run) == list(range(1, 11))


@pytest.mark.slow  # Slurm's time limits are whole minutes
def test_time_limit(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm warns before the limit; the job is requeued as often as cluster.max_timeouts says."""
    sweep = Sweep(slurm, tmp_path, "reward.terms.digits.sleep=2", "trainer.max_steps=1000", "evaluation=none")
    code, _, err = sweep.start("cluster.time=1", "cluster.signal_delay=40", "cluster.max_timeouts=1").wait(600)
    (run,) = sweep.runs
    assert code == 75 and "the same command continues the sweep" in err, err + sweep.logs()
    told = status(run)
    assert told["status"] == "preempted" and "timed-out too many times" in told["reason"]
    assert "Restarts=1" in slurm.ask("scontrol", "show", "job", told["slurm_job"])
