"""Jobs of a sweep side by side: real processes with little programs instead of training."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from rlexp.launch.folder import RunFolder, now
from rlexp.launch.jobs import Job, Result, run_jobs
from rlexp.launch.lock import is_alive
from rlexp.launch.signals import StopRequest
from rlexp.launch.sweep_view import SweepView, progress_of
from rlexp.records.sweep import stop_mark

PRELUDE = """
import json, os, sys, time
from pathlib import Path
from rlexp.launch.folder import RunFolder, now
folder = RunFolder(Path(os.environ["RLEXP_SWEEP_DIR"]) / os.environ["RLEXP_SWEEP_JOB"])
seed = int(sys.argv[1])
folder.path.mkdir(exist_ok=True)
def status(state, **fields):
    folder.write_status(state, pid=os.getpid(), **fields)
"""


def job(sweep: Path, seed: int, body: str) -> Job:
    return Job((f"run.seed={seed}",), (sys.executable, "-c", PRELUDE + body, str(seed)), sweep / f"seed={seed}", f"run.seed={seed}", seed)


class Quiet:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.most_at_once = self._now = 0

    def started(self, job: Job) -> None:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        self.lines.append(f"started {job.name}")

    def ended(self, result: Result) -> None:
        self._now -= 1
        self.lines.append(f"ended {result.job.name}")

    def refresh(self) -> None:
        pass


@pytest.mark.cases("S38")
def test_a_failing_job_stops_no_other(tmp_path: Path) -> None:
    body = """
status("running")
print("working on", seed)
if seed == 2:
    status("failed", reason="ValueError: seed two")
    print("Traceback (most recent call last)")
    sys.exit(1)
status("finished", ended=now())
"""
    results = run_jobs([job(tmp_path, seed, body) for seed in (1, 2, 3)], [{}], tmp_path / "logs", Quiet(), StopRequest())
    assert [(result.state, result.reason) for result in results] == [("finished", ""), ("failed", "ValueError: seed two"), ("finished", "")]
    assert [RunFolder(result.job.folder).status()["status"] for result in results] == ["finished", "failed", "finished"]
    log = (tmp_path / "logs" / "seed=2.log").read_text().splitlines()
    assert log[0].endswith(" run.seed=2") and log[1:] == ["working on 2", "Traceback (most recent call last)"]


def test_an_option_stops_at_the_first_failure(tmp_path: Path) -> None:
    results = run_jobs(
        [job(tmp_path, seed, "sys.exit(seed == 1)") for seed in (1, 2, 3)], [{}], tmp_path / "logs", Quiet(), StopRequest(), stop_on_failure=True
    )
    assert [result.state for result in results] == ["failed", "not started", "not started"]


def test_side_by_side_each_with_the_environment_of_its_place(tmp_path: Path) -> None:
    body = """
(folder.path / "here").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
deadline = time.monotonic() + 60
while len(list(folder.path.parent.glob("*/here"))) < 2 and time.monotonic() < deadline: time.sleep(0.02)
if seed == 1:  # until the others have had the other place one after the other
    while len(list(folder.path.parent.glob("*/here"))) < 4 and time.monotonic() < deadline: time.sleep(0.02)
sys.exit(time.monotonic() > deadline)
"""
    view = Quiet()
    places = [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    results = run_jobs([job(tmp_path, seed, body) for seed in (1, 2, 3, 4)], places, tmp_path / "logs", view, StopRequest())
    assert [result.state for result in results] == ["finished"] * 4 and view.most_at_once == 2
    assert [(tmp_path / f"seed={seed}" / "here").read_text() for seed in (1, 2, 3, 4)] == ["0,1", "2,3", "2,3", "2,3"]


def test_stopped_jobs_are_not_started_and_paused_ones_say_so(tmp_path: Path) -> None:
    body = "status('paused', reason='paused at step 2 by the sweep')"
    jobs = [job(tmp_path, seed, body) for seed in (1, 2, 3)]
    for stopped in jobs[1:]:
        stop_mark(stopped.folder).parent.mkdir(exist_ok=True)
        stop_mark(stopped.folder).touch()
    jobs[2].folder.mkdir()
    RunFolder(jobs[2].folder).write_status("finished", ended=now())  # it was done before anybody could stop it
    view = Quiet()
    results = run_jobs(jobs, [{}], tmp_path / "logs", view, StopRequest())
    assert [(result.state, result.reason) for result in results][:2] == [("paused", "paused at step 2 by the sweep"), ("stopped", "by the user")]
    assert not jobs[1].folder.exists() and "started seed=2" not in view.lines and "started seed=3" in view.lines


def test_what_is_said_about_each_end(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, 1, "status('running'); os.kill(os.getpid(), 9)"),
        job(tmp_path, 2, "folder.path.rmdir(); print('error: loss.epsilon: too large\\nsecond line', file=sys.stderr); sys.exit(1)"),
        job(tmp_path, 3, "status('preempted', reason='stopped by SIGTERM'); sys.exit(75)"),
        job(tmp_path, 4, "sys.exit(3)"),
        job(tmp_path, 5, ""),
    ]
    RunFolder(jobs[4].folder).path.mkdir()
    RunFolder(jobs[4].folder).write_status("finished", ended="2026-01-01T00:00:00+00:00")
    results = run_jobs(jobs, [{}, {}], tmp_path / "logs", Quiet(), StopRequest())
    assert [(result.state, result.reason) for result in results] == [
        ("failed", "killed by SIGKILL (out of memory?)"),
        ("failed", "loss.epsilon: too large\nsecond line"),
        ("preempted", "stopped by SIGTERM"),
        ("failed", "exit code 3"),
        ("finished before", ""),
    ]
    status = RunFolder(jobs[0].folder).status()  # it could not say so itself
    assert (status["status"], status["reason"]) == ("failed", "killed by SIGKILL (out of memory?)")


SWEEP = """
import json, sys
from pathlib import Path
from rlexp.launch.jobs import Job, run_jobs
from rlexp.launch.signals import handling
from rlexp.launch.sweep_view import SweepView
sweep, body = Path(sys.argv[1]), sys.argv[2]
jobs = [Job((f"run.seed={seed}",), (sys.executable, "-c", body, str(seed)), sweep / f"seed={seed}", f"run.seed={seed}", seed) for seed in (1, 2, 3)]
with handling() as stop, SweepView(3) as view:
    results = run_jobs(jobs, [{}, {}], sweep / "logs", view, stop)
print(json.dumps([result.state for result in results]))
"""
WORKING = """
import signal
from rlexp.launch.watch import follow_parent
from rlexp.launch.signals import handling
follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
with handling() as stop:
    (folder.path / "pid").write_text(str(os.getpid()))
    while not stop.requested: time.sleep(0.01)
    status("preempted", reason=stop.reason)
sys.exit(75)
"""


def sweep_with_working_jobs(sweep: Path) -> tuple[subprocess.Popen, list[int]]:
    """A sweep of three jobs, two of which have begun to work; and their pids."""
    process = subprocess.Popen([sys.executable, "-c", SWEEP, str(sweep), PRELUDE + WORKING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    files = [sweep / f"seed={seed}" / "pid" for seed in (1, 2)]
    deadline = time.monotonic() + 20
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, [int(file.read_text()) for file in files]


def test_ctrl_c_lets_the_jobs_save_and_starts_no_more(tmp_path: Path) -> None:
    process, _ = sweep_with_working_jobs(tmp_path)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=20)[0].splitlines()
    assert json.loads(out[-1]) == ["preempted", "preempted", "not started"]
    assert out[:2] == ["[1/3] started job 1: run.seed=1", "[2/3] started job 2: run.seed=2"]
    assert not (tmp_path / "seed=3").exists()


def test_kill_9_of_the_sweep_lets_the_jobs_save_too(tmp_path: Path) -> None:
    process, pids = sweep_with_working_jobs(tmp_path)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [RunFolder(tmp_path / f"seed={seed}").status()["status"] for seed in (1, 2)] == ["preempted", "preempted"]


def test_the_view_tells_where_a_run_is(tmp_path: Path) -> None:
    assert progress_of(tmp_path) == "starting"
    lines = [{"step": 0, "split": "eval", "accuracy": 0.25}, {"step": 12, "split": "train", "reward": 0.4321}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 13, "re')
    assert progress_of(tmp_path) == "step 12  reward 0.432  accuracy 0.25"

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    one = Job(("experiment=x", "run.seed=1"), (), tmp_path, "run.seed=1", 7)
    with SweepView(2, console) as view:
        view.started(one)
        view.refresh()
        view.ended(Result(one, "failed", "ValueError: [bold] two\nmore", 3.4))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0 of 2 jobs done, 1 running" in shown and "job 7: run.seed=1  step 12  reward 0.432" in shown
    assert "[1/2 done] job 7 failed: run.seed=1 (3 s): ValueError: [bold] two" in shown
    assert os.environ.get("RLEXP_SWEEP_JOB") is None
