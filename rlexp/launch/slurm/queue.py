"""What Slurm says about jobs, by squeue and scontrol. The accounting database (sacct), which not every cluster has, is not asked."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

JOB, SUBMITTED = "SLURM_JOB_ID", "RLEXP_SLURM_JOB"
"""Environment of a job; the second, its id with the index in an array, only of one that our launcher submitted"""
TIMEOUT = 60.0
"""Seconds a busy controller may take to answer"""
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})
"""States of jobs that have not ended (squeue(1), job state codes)"""


@dataclass(frozen=True)
class State:
    """A job's state, and why it waits or ended there."""

    name: str
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether the job has ended for good."""
        return self.name not in WAITING | RUNNING


def states(jobs: Iterable[str]) -> dict[str, State] | None:
    """The state of each job that Slurm still knows (it forgets ended ones after MinJobAge); None when it does not answer.

    jobs: ids, of array jobs with the index: 12_0.
    """
    jobs = list(jobs)
    found: dict[str, State] = {}
    for whole in dict.fromkeys(job.partition("_")[0] for job in jobs):  # one by one: a forgotten id would hide those behind it
        done = _ask("squeue", "--noheader", "--array", "--states=all", f"--jobs={whole}", "--format=%i|%T|%r")
        if done is None or (done.returncode and "Invalid job id" not in done.stderr):
            return None
        for line in done.stdout.splitlines():
            job, name, reason = (*line.strip().split("|", 2), "", "")[:3]
            found[job] = State(name, "" if reason == "None" else reason)
    return {job: found[job] for job in jobs if job in found}


def withdraw(jobs: Iterable[str]) -> None:
    """End those of the jobs that have not started."""
    _ask("scancel", "--state=PENDING", *jobs)


def exit_code(job: str) -> str:
    """What a job's script ended with, in words; empty when Slurm does not know it any more."""
    done = _ask("scontrol", "show", "job", job)
    found = re.search(r"\bExitCode=(\d+):(\d+)", done.stdout) if done is not None and done.returncode == 0 else None
    if found is None or found[0].endswith("=0:0"):
        return ""
    return f"signal {found[2]}" if found[2] != "0" else f"exit code {found[1]}"


def runs(job: str) -> bool:
    """Whether a job may have live processes. One that our launcher submitted starts one run, and Slurm ended its earlier life before it requeued it."""
    if job == os.environ.get(JOB) and SUBMITTED in os.environ:
        return False
    done = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    if done is None or (done.returncode and "Invalid job id" not in done.stderr):
        return True
    return any(line.strip() in RUNNING for line in done.stdout.splitlines())


def _ask(*command: str) -> subprocess.CompletedProcess[str] | None:
    """What a program of Slurm says; None where there is none, or it takes too long."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
