"""Jobs of a sweep stopped, resumed and cloned: what is refused, and what is left on the disk. Whole sweeps are in test_sweeps.py."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.config.errors import UserError
from rlexp.launch import control
from rlexp.launch.folder import RunFolder
from rlexp.launch.jobs import Job
from rlexp.launch.lock import FolderLock
from rlexp.records.sweep import record_jobs, recorded_jobs, stop_mark


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Jobs: 1 finished with two checkpoints, 2 running here, 3 paused, 4 not started, 5 died, 6 failed."""
    folder = tmp_path / "sweeps" / "mine"
    states = {"a": "finished", "b": "running", "c": "paused", "d": "", "e": "running", "f": "failed"}
    shared = ["experiment=none", "sweep=halving", "sweep.jobs=2"]
    record_jobs(folder, {name: [*shared, f"run.seed={n}", "loss.epsilon=0.2"] for n, name in enumerate(states, start=1)}, flags=["--config-dir", "mine"])
    for name, state in states.items():
        if state:
            (folder / name).mkdir()
            RunFolder(folder / name).write_status(state, reason=None)
    for step in (5, 10):
        weights = folder / "a" / "checkpoints" / f"step_{step:06d}" / "weights"
        weights.mkdir(parents=True)
        (weights / "policy.safetensors").write_bytes(bytes([step]))
    FolderLock(folder / "b").acquire()
    return folder


def test_stop(sweep: Path) -> None:
    with pytest.raises(UserError, match=r"^job 1 is finished: there is nothing to stop$"):
        control.stop(sweep, 1)
    said = [control.stop(sweep, number) for number in (2, 3, 4, 5, 6, 3)]
    assert said == [
        "job 2 finishes its step, saves and stops",
        "job 3 will not be continued",
        "job 4 will not be started",
        "job 5 will not be continued",
        "job 6 will not be continued",
        "job 3 was stopped before",
    ]
    states = {name: RunFolder(sweep / name).status().get("status") for name in "abcdef"}
    assert states == {"a": "finished", "b": "running", "c": "stopped", "d": None, "e": "stopped", "f": "failed"}
    assert not (sweep / "d").exists() and [stop_mark(sweep / name).exists() for name in "abcdef"] == [False, True, True, True, True, True]


def test_no_such_job(sweep: Path, tmp_path: Path) -> None:
    for number in (0, 7, -1):
        with pytest.raises(UserError, match=rf"has no job {number}: its jobs are 1 to 6"):
            control.stop(sweep, number)
    with pytest.raises(UserError, match=r"is no sweep: it has no sweep\.json"):
        control.stop(tmp_path, 1)


def test_resume(sweep: Path) -> None:
    for number, state in ((1, "finished"), (2, "running")):
        with pytest.raises(UserError, match=rf"^job {number} is {state}: there is nothing to resume$"):
            control.resumed(sweep, number)
    control.stop(sweep, 3)
    job = control.resumed(sweep, 3)
    assert isinstance(job, Job)
    assert not stop_mark(job.folder).exists() and (job.folder, job.number) == (sweep / "c", 3)
    assert job.command[1:5] == ("-m", "rlexp.train", "--config-dir", "mine") and job.command[5:] == job.overrides


def test_clone(sweep: Path) -> None:
    job = control.cloned(sweep, 1, ["loss.epsilon=0.1", "loss=grpo"], anew=False)
    assert isinstance(job, Job)
    origin = sweep / "origins" / "job1-step_000010"
    assert job.overrides == ("experiment=none", "run.seed=1", "loss.epsilon=0.1", "loss=grpo", f'run.start_from="{origin}"')
    assert job.number == 7 and job.label == "loss.epsilon=0.1 loss=grpo from job1-step_000010"
    assert job.folder.parent == sweep and job.name.startswith("job1-step_000010-")
    assert recorded_jobs(sweep)[job.name] == {"overrides": list(job.overrides), "flags": ["--config-dir", "mine"], "reason": ""}

    shutil.rmtree(sweep / "a" / "checkpoints" / "step_000010")  # the run goes on and keeps others
    assert (origin / "weights" / "policy.safetensors").read_bytes() == bytes([10])
    older, again = control.cloned(sweep, 1, ["run.seed=9"], anew=False), control.cloned(sweep, 7, ["run.seed=3"], anew=True)
    assert isinstance(older, Job) and older.label == "run.seed=9 from job1-step_000005"
    assert isinstance(again, Job) and again.overrides == ("experiment=none", "loss.epsilon=0.1", "loss=grpo", "run.seed=3"), "nothing of where job 7 started"


def test_clones_that_are_refused(sweep: Path) -> None:
    before = recorded_jobs(sweep)
    with pytest.raises(UserError, match=r"job 3 has no checkpoint to clone yet: wait .* or add --anew"):
        control.cloned(sweep, 3, ["run.seed=9"], anew=False)
    with pytest.raises(UserError, match=r"^run\.seed is no setting: write KEY=VALUE"):
        control.cloned(sweep, 1, ["run.seed"], anew=False)
    assert recorded_jobs(sweep) == before


def test_jobs_of_slurm_are_left_to_it(sweep: Path) -> None:
    record_jobs(sweep, {"s": ["cluster=slurm", "cluster.partition=gpu", "run.seed=1", "sweep.name=mine"]}, flags=["--config-dir", "my conf"])
    weights = sweep / "s" / "checkpoints" / "step_000003" / "weights"
    weights.mkdir(parents=True)
    said = control.cloned(sweep, 7, ["run.seed=9"], anew=False)
    assert isinstance(said, str) and said.startswith("job 7 runs on Slurm; its clone is submitted by\n")
    origin = sweep / "origins" / "job7-step_000003"
    overrides = ["cluster=slurm", "cluster.partition=gpu", "run.seed=9", f'run.start_from="{origin}"', "sweep.name=mine"]
    root = f"RLEXP_OUTPUTS={sweep.parent.parent}"
    assert shlex.split(said.splitlines()[1]) == ["env", root, "python", "-m", "rlexp.train", "-m", "--config-dir", "my conf", *overrides]
    assert len(recorded_jobs(sweep)) == 7, "recorded once it is submitted"
    control.stop(sweep, 7)
    assert control.resumed(sweep, 7) == "job 7 is not stopped any more: the command of its sweep submits it to Slurm again"
    assert not stop_mark(sweep / "s").exists()


def test_the_printed_command_runs_the_job(sweep: Path, tmp_path: Path) -> None:
    job = control.cloned(sweep, 3, ["data.path='a b'"], anew=True)
    assert isinstance(job, Job)
    words = shlex.split(control.command_line(job))
    assert words == [f"RLEXP_SWEEP_DIR={sweep}", f"RLEXP_SWEEP_JOB={job.name}", "python", *job.command[1:]]
    assert words[-1] == "data.path='a b'"


def test_the_program(sweep: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rlexp.sweep", str(sweep), *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
        )

    shown = run("stop", "4", "3")
    assert (shown.returncode, shown.stdout) == (0, "job 4 will not be started\njob 3 will not be continued\n")
    refused = run("stop", "1")
    assert (refused.returncode, refused.stderr) == (1, "error: job 1 is finished: there is nothing to stop\n")
    assert run("clone", "1", "--print", "run.seed=9").stdout.startswith("RLEXP_SWEEP_DIR=")
    table = run().stdout.splitlines()
    assert table[5].split()[:4] == ["4", "4", "-", "stopped"] and table[8].split()[:2] == ["7", "9"] and "origins/job1-step_000010" in table[8]
