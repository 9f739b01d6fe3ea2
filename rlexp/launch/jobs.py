"""Jobs of a sweep side by side, each a process with its own folder and log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlexp.launch.folder import FAILED, FINISHED, PAUSED, PREEMPTED, RUNNING, STOPPED, RunFolder, now
from rlexp.launch.signals import PREEMPTED_CODE, StopRequest
from rlexp.launch.watch import PARENT
from rlexp.records.sweep import stop_mark

POLL = 0.2
SKIPPED, NOT_STARTED = "finished before", "not started"
"""Results beside those of status.json"""
SWEEP_DIR, SWEEP_JOB = "RLEXP_SWEEP_DIR", "RLEXP_SWEEP_JOB"
"""Environment of a job: the sweep's folder, and the name of the job's own folder in it"""


PROGRAM = (sys.executable, "-m", "rlexp.train")


def program(flags: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """The command of a job. flags: what of a command line is not an override, e.g. --config-dir."""
    return (*PROGRAM, *flags, *overrides)


@dataclass(frozen=True)
class Job:
    """One job. folder: its run folder, made by the job itself once its config is valid. label: what sets it apart, for people. number: in its sweep, from 1."""

    overrides: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    label: str
    number: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.folder.name

    @property
    def arguments(self) -> tuple[str, ...]:
        """What its command gives to the program."""
        return self.command[len(PROGRAM) :]


@dataclass(frozen=True)
class Result:
    """How a job ended. state: finished, finished before, failed, preempted, paused, stopped (by the user), or not started."""

    job: Job
    state: str
    reason: str = ""
    seconds: float = 0.0


class View(Protocol):
    """Who shows what goes on."""

    def started(self, job: Job) -> None:
        """A job begins."""

    def ended(self, result: Result) -> None:
        """A job is over."""

    def refresh(self) -> None:
        """Called a few times a second."""


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    since: float
    place: int
    """which of the places for jobs side by side it has"""
    ended_before: str | None
    """when the folder's run ended, if it was finished already"""

    def send(self, number: int) -> None:
        if self.process.poll() is not None:
            return
        if number == signal.SIGKILL:
            os.killpg(self.process.pid, number)
        else:  # the job has one way to stop: finish the step, save
            self.process.send_signal(signal.SIGTERM)


def run_jobs(
    jobs: Sequence[Job],
    places: Sequence[Mapping[str, str]],
    logs: Path,
    view: View,
    stop: StopRequest,
    *,
    stop_on_failure: bool = False,
) -> list[Result]:
    """Run the jobs in order, as many at a time as there are places, and wait for all. Returns a result for each.

    places: what each place adds to the environment of the job that has it, e.g. its GPUs. logs: folder for the output of each job, NAME.log, appended. A
    failing job stops no other; with stop_on_failure no further one is started. When `stop` is requested, running jobs are asked to save and stop, and no
    further one is started. A job that the user has stopped is not started.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting: list[Job] = list(jobs)
    running: list[_Running] = []
    results: list[Result] = []

    def forward(number: int) -> None:
        for item in running:
            item.send(number)

    stop.forward = forward
    try:
        while waiting or running:
            if stop.requested or (stop_on_failure and any(result.state == FAILED for result in results)):
                results += [Result(job, NOT_STARTED) for job in waiting]
                waiting = []
            while waiting and (free := [place for place in range(len(places)) if place not in [item.place for item in running]]):
                job = waiting.pop(0)
                if stop_mark(job.folder).exists() and RunFolder(job.folder).status().get("status") != FINISHED:
                    results.append(Result(job, STOPPED, "by the user"))
                    view.ended(results[-1])
                    continue
                running.append(_spawn(job, free[0], logs, places[free[0]]))
                view.started(job)
            for item in [item for item in running if item.process.poll() is not None]:
                running.remove(item)
                results.append(_result(item, logs))
                view.ended(results[-1])
            view.refresh()
            time.sleep(POLL if running else 0)
    finally:
        stop.forward = None
        for item in running:
            item.send(signal.SIGKILL)
            item.process.wait()
    order = {job.name: number for number, job in enumerate(jobs)}
    return sorted(results, key=lambda result: order[result.job.name])


def _spawn(job: Job, place: int, logs: Path, environment: Mapping[str, str]) -> _Running:
    status = RunFolder(job.folder).status()
    with open(logs / f"{job.name}.log", "ab") as log:
        log.write(f"--- {now()} {' '.join(job.overrides)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment, SWEEP_DIR: str(job.folder.parent), SWEEP_JOB: job.name, PARENT: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which asks its jobs to save
        )
    return _Running(job, process, time.monotonic(), place, status.get("ended") if status.get("status") == FINISHED else None)


def _result(item: _Running, logs: Path) -> Result:
    """How a job ended, by its exit code; a job that was killed cannot say so itself, so its status is corrected here."""
    folder, code, seconds = RunFolder(item.job.folder), item.process.returncode, time.monotonic() - item.since
    status = folder.status()
    if code == 0:
        if status.get("status") in (PAUSED, STOPPED):
            return Result(item.job, str(status["status"]), str(status.get("reason", "")), seconds)
        before = item.ended_before is not None and status.get("ended") == item.ended_before
        return Result(item.job, SKIPPED if before else FINISHED, "", seconds)
    if code == PREEMPTED_CODE:
        return Result(item.job, PREEMPTED, str(status.get("reason", "")), seconds)
    own = status.get("pid") == item.process.pid
    if code < 0:
        reason = f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        if own and status.get("status") == RUNNING:
            folder.write_status(FAILED, reason=reason, ended=now())
        return Result(item.job, FAILED, reason, seconds)
    said = str(status.get("reason", "")) if own and status.get("status") == FAILED else ""
    return Result(item.job, FAILED, said or last_words(logs / f"{item.job.name}.log") or f"exit code {code}", seconds)


def last_words(log: Path) -> str:
    """The error message at the end of a log, else its last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if errors:
        return "\n".join([lines[errors[-1]].removeprefix("error: "), *lines[errors[-1] + 1 :]])
    return lines[-1] if lines and not lines[-1].startswith("--- ") else ""
