"""Sweeps that end runs early, through the command line: halving, and jobs that are stopped, resumed and cloned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from programs import TESTS, Done, Programs
from run_folders import final_weights, metrics, rollouts, status, train_steps
from small_runs import wait_for

from rlexp.launch import control

SMALL = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=6", "reward=[digits]"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=4", "algorithm.num_generations=4", "trainer.steps_per_batch=2"),
    *("trainer.tokens_per_microbatch=200", "trainer.max_steps=4", "evaluation.steps=1", "tracker.rollout_steps=1", "trainer.threads=1"),
]
RATES = "optimizer.learning_rate=0.05,0.0"
"""The second learns nothing"""


def folders(sweep: Path) -> list[Path]:
    """Run folders in the order of their numbers."""
    return [sweep / name for name in json.loads((sweep / "sweep.json").read_text())]


def environment(folder: Path) -> dict[str, str]:
    """Of a process of its own, as `Programs` gives it to those that it forks."""
    paths = os.pathsep.join([str(TESTS), str(TESTS / "contracts" / "plugin")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RLEXP_OUTPUTS": str(folder / "out")}


@pytest.fixture(scope="module")
def halved(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done, list[str]]:
    """A halving sweep of two jobs: both to step 2, one of them to step 4. The folder it ran in, what it printed, its command."""
    folder = tmp_path_factory.mktemp("halving")
    command = ["-m", *SMALL, "sweep=halving", "sweep.metric=reward", "sweep.name=early", "sweep.jobs=2", RATES]
    done = programs.train(*command, cwd=folder, env={"RLEXP_OUTPUTS": str(folder / "out")}, timeout=300)
    assert done.code == 0, done.out + done.err
    return folder, done, command


@pytest.mark.rows("GRPO-280")
def test_halving_pauses_and_goes_on_bit_for_bit(programs: Programs, halved: tuple[Path, Done, list[str]]) -> None:
    folder, done, command = halved
    sweep = folder / "out" / "sweeps" / "early"
    states = [status(run)["status"] for run in folders(sweep)]
    assert sorted(states) == ["finished", "paused"]
    assert [train_steps(run)[-1] for run in folders(sweep)] == [4 if state == "finished" else 2 for state in states]
    loser, winner = folders(sweep)[states.index("paused")], folders(sweep)[states.index("finished")]
    assert status(loser)["reason"].startswith("paused at step 2 by the sweep: not promoted at step 2 (reward ")
    assert json.loads((loser / "summary.json").read_text())["status"] == "paused" and not (loser / "model").exists() and (winner / "model").exists()
    assert "rung 1 of 2: 2 jobs to step 2\n" in done.out and "rung 2 of 2: 1 job to its end\n" in done.out
    assert done.out.endswith("6 of 8 steps trained\n0 settled earlier, 2 run\n") and "1 finished, 0 failed, 1 paused\n" in done.out
    assert (sweep / "sweep.html").is_file() and f"curves: {sweep / 'sweep.html'}\n" in done.out

    rate = (winner / "overrides.txt").read_text().splitlines()[-1]
    # not by `programs`: sums in a forked process may differ in the last bits from those in one of its own, as jobs are
    whole = subprocess.run([sys.executable, "-m", "rlexp.train", *SMALL, rate, "run.name=whole"], cwd=folder, env=environment(folder), capture_output=True)
    assert whole.returncode == 0, whole.stderr
    alone = folder / "out" / "whole"
    assert metrics(winner) == metrics(alone)
    assert rollouts(winner) == rollouts(alone) and final_weights(winner) == final_weights(alone)

    again = programs.train(*command, cwd=folder, env={"RLEXP_OUTPUTS": str(folder / "out")})
    assert again.code == 0 and again.out.endswith("\n2 settled earlier, 0 run\n") and "started job" not in again.out


def test_a_paused_job_resumes_and_a_finished_one_is_cloned(programs: Programs, halved: tuple[Path, Done, list[str]]) -> None:
    folder, _, _ = halved
    sweep = folder / "out" / "sweeps" / "early"

    def program(*arguments: str) -> Done:
        return programs.run("rlexp.sweep", str(sweep), *arguments, cwd=folder, timeout=300)

    paused = [status(run)["status"] for run in folders(sweep)].index("paused") + 1
    resumed = program("resume", str(paused))
    assert resumed.code == 0 and train_steps(folders(sweep)[paused - 1]) == [1, 2, 3, 4], resumed.out + resumed.err

    cloned = program("clone", "1", "optimizer.learning_rate=0.0", "trainer.max_steps=1")
    assert cloned.code == 0 and cloned.out.startswith("job 3 in "), cloned.out + cloned.err
    clone = folders(sweep)[2]
    assert status(clone)["status"] == "finished" and final_weights(clone) == final_weights(folders(sweep)[0]), "a rate of 0 leaves the weights where it started"

    misfit = program("clone", "1", "model=tiny", "model.warm_start_accuracy=0")
    assert misfit.code == 1 and "do not fit this model" in misfit.err and len(folders(sweep)) == 3 and "Traceback" not in misfit.err
    unknown = program("clone", "1", "optimizer.learning_rat=0.1")
    assert unknown.code == 1 and "optimizer.learning_rat" in unknown.err and len(folders(sweep)) == 3


def test_jobs_of_a_running_sweep_are_stopped(programs: Programs, tmp_path: Path) -> None:
    long = ("trainer.max_steps=100000", "data.size=400000", "evaluation=none", "checkpoint.steps=1")
    command = ["-m", *SMALL, *long, "sweep.name=long", "run.seed=1,2"]
    process = subprocess.Popen([sys.executable, "-m", "rlexp.train", *command], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.communicate()[0]))
    reader.start()
    sweep = tmp_path / "out" / "sweeps" / "long"
    try:
        wait_for(lambda: process.poll() is not None or any(sweep.glob("*/checkpoints/latest")), 120)
        clone = ("clone", "1", "optimizer.learning_rate=0.0", "trainer.max_steps=1")
        cloned = programs.run("rlexp.sweep", str(sweep), *clone, cwd=tmp_path, timeout=300)
        assert cloned.code == 0 and process.poll() is None, "a clone of a run that goes on: " + cloned.out + cloned.err
        assert control.stop(sweep, 2) == "job 2 will not be started"
        assert control.stop(sweep, 1) == "job 1 finishes its step, saves and stops"
        reader.join(120)
        assert process.returncode == 0
    finally:
        process.kill()
        reader.join()
    first, second, third = folders(sweep)
    assert status(third)["status"] == "finished" and train_steps(third) == [1]
    step = train_steps(first)[-1]
    assert (status(first)["status"], status(first)["reason"]) == ("stopped", f"stopped at step {step} by the user") and not second.exists()
    assert (first / "checkpoints" / f"step_{step:06d}").is_dir() and "0 finished, 0 failed, 2 stopped" in said[0]
    again = programs.train(*command, cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path / "out")})
    assert again.code == 0 and "0 finished, 0 failed, 2 stopped" in again.out and "started job" not in again.out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep=halving", RATES, "evaluation.steps=null"], "set evaluation.steps"),
        (["sweep=halving", RATES, "checkpoint=none"], "set checkpoint=default"),
        (["sweep=halving", RATES, "sweep.reduction=3"], "sweep.reduction=3 lets one run in 3 go on"),
        (["run.seed=1,2,3", "sweep.jobs=3"], "sweep.jobs=3 jobs side by side with 1 GPU each need 3 GPUs, and there is 2 of them"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_anything_starts(programs: Programs, tmp_path: Path, overrides: list[str], message: str) -> None:
    env = {"RLEXP_OUTPUTS": str(tmp_path / "out"), "CUDA_VISIBLE_DEVICES": "0,1"}
    done = programs.train("-m", *SMALL, *overrides, cwd=tmp_path, env=env)
    assert done.code == 1 and message in done.err and "Traceback" not in done.err, done.out + done.err
    assert not list((tmp_path / "out").glob("sweeps/*")), "no folder either"


def test_halving_without_a_sweep_is_refused(programs: Programs, tmp_path: Path) -> None:
    done = programs.train(*SMALL, "sweep=halving", cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path / "out")})
    assert done.code == 1 and "sweep.method=halving compares the runs of a sweep: add -m" in done.err
