"""Jobs of a sweep from the terminal, while it runs or afterwards: stop one, let it go on, clone it with other settings."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.config.names import job_name, safe_name
from rlexp.launch.folder import FAILED, FINISHED, PREEMPTED, STOPPED, RunFolder
from rlexp.launch.jobs import SWEEP_DIR, SWEEP_JOB, Job, program, run_jobs
from rlexp.launch.lock import holder_of
from rlexp.launch.signals import PREEMPTED_CODE, handling
from rlexp.launch.sweep_view import SweepView
from rlexp.records.sweep import forget_job, record_jobs, recorded_jobs, stop_mark

SLURM = "cluster=slurm"
"""Override of jobs that are not started from here"""
TRIES = 50
"""To copy a checkpoint of a run that saves and deletes them meanwhile"""
ORIGINS = "origins"
"""In the sweep's folder: the weights that clones started from, kept when the run they are of has deleted that checkpoint"""


@dataclass(frozen=True)
class Recorded:
    """A job as its sweep recorded it."""

    number: int
    overrides: tuple[str, ...]
    flags: tuple[str, ...]
    folder: RunFolder

    @property
    def state(self) -> str:
        """What its status says, empty before it was started."""
        return str(self.folder.status().get("status", ""))

    @property
    def alive(self) -> bool:
        """Whether a process holds its folder; one on another machine counts, since it cannot be seen from here."""
        try:
            holder = holder_of(self.folder.path / "lock")
        except FileNotFoundError:
            return False
        return holder is None or holder.alive

    def job(self) -> Job:
        """The job, to be run."""
        return Job(self.overrides, program(self.flags, self.overrides), self.folder.path, " ".join(self.overrides), self.number)


def find(sweep: Path, number: int) -> Recorded:
    """A job by its number in the table of its sweep. Raises UserError."""
    jobs = recorded_jobs(sweep)
    if not jobs:
        raise UserError(f"{sweep} is no sweep: it has no sweep.json; give a folder like outputs/sweeps/NAME")
    if not 1 <= number <= len(jobs):
        raise UserError(f"{sweep} has no job {number}: its jobs are 1 to {len(jobs)} (python -m rlexp.sweep {sweep} lists them)")
    name, job = list(jobs.items())[number - 1]
    return Recorded(number, tuple(job["overrides"]), tuple(job["flags"]), RunFolder((sweep / name).absolute()))


def stop(sweep: Path, number: int) -> str:
    """Stop a job: a running one finishes its step and saves, another one is not started any more. Returns what happens. Raises UserError."""
    job = find(sweep, number)
    mark = stop_mark(job.folder.path)
    if job.state == FINISHED:
        raise UserError(f"job {number} is finished: there is nothing to stop")
    if mark.exists():
        return f"job {number} was stopped before"
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    if job.alive:
        return f"job {number} finishes its step, saves and stops"
    if not job.state:
        return f"job {number} will not be started"
    if job.state != FAILED:
        step = job.folder.saved_step
        job.folder.write_status(STOPPED, reason="stopped by the user" if step is None else f"stopped at step {step} by the user")
    return f"job {number} will not be continued"


def resumed(sweep: Path, number: int) -> Job | str:
    """A job that was stopped or paused, to be run to its end; a text when that is not done here. Raises UserError when it is finished or running."""
    job = find(sweep, number)
    if job.alive or job.state == FINISHED:
        raise UserError(f"job {number} is {'running' if job.alive else 'finished'}: there is nothing to resume")
    stop_mark(job.folder.path).unlink(missing_ok=True)
    if SLURM in job.overrides:
        return f"job {number} is not stopped any more: the command of its sweep submits it to Slurm again"
    return job.job()


def cloned(sweep: Path, number: int, changes: Sequence[str], anew: bool) -> Job | str:
    """A new job of the sweep: another one with changed settings, starting from the weights of its newest checkpoint (anew: from the model's own).

    The steps of a clone count from 0, with an optimizer and a schedule of its own. On Slurm a text with the command that submits it, which makes it a job
    of the same sweep. Raises UserError for what is no setting, and without a checkpoint.
    """
    source = find(sweep, number)
    if wrong := [change for change in changes if not re.match(r"[+~]{0,2}[\w./@-]+=", change)]:
        raise UserError(f"{wrong[0]} is no setting: write KEY=VALUE, e.g. optimizer.learning_rate=3e-6")
    changed = {_key(change) for change in changes} | {"run.start_from"}
    kept = [override for override in source.overrides if _key(override) not in changed and not re.match(r"sweep\b", _key(override))]
    start, where = [], "anew"
    if not anew:
        origin = _origin(sweep, source)
        start, where = [f'run.start_from="{origin}"'], origin.name
    name = safe_name(f"{where if where != 'anew' else f'job{number}-anew'}-{job_name(changes)}")
    overrides = (*kept, *changes, *start)
    if SLURM in overrides:
        return f"job {number} runs on Slurm; its clone is submitted by\n{_submission(sweep.absolute(), source.flags, overrides)}"
    record_jobs(sweep, {name: overrides}, flags=source.flags)
    position = list(recorded_jobs(sweep)).index(name) + 1
    return Job(overrides, program(source.flags, overrides), (sweep / name).absolute(), f"{' '.join(changes)} from {where}", position)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _origin(sweep: Path, source: Recorded) -> Path:
    """A copy (of names, not of bytes) of the newest checkpoint's weights, which the run itself may delete any time. Raises UserError when there is none."""
    for _ in range(TRIES):
        checkpoint = source.folder.latest_checkpoint
        if checkpoint is None:
            raise UserError(
                f"job {source.number} has no checkpoint to clone yet: wait until it has saved one (checkpoint.steps), or add --anew, "
                "which starts the changed settings from the model's own weights"
            )
        target = sweep.absolute() / ORIGINS / f"job{source.number}-{checkpoint.name}"
        if target.is_dir():
            return target
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        with contextlib.suppress(FileNotFoundError, shutil.Error):  # deleted just now
            shutil.copytree(checkpoint / "weights", temporary / "weights", copy_function=_link)
            if source.folder.latest_checkpoint == checkpoint:  # it is deleted, file by file, only when there is a newer one
                temporary.rename(target)
                return target
        shutil.rmtree(temporary, ignore_errors=True)
    raise UserError(f"the checkpoints of job {source.number} come and go too fast to copy one: raise its checkpoint.keep_last")


def _link(source: str, target: str) -> None:
    """A second name for a file; a copy where the disk has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _submission(sweep: Path, flags: Sequence[str], overrides: Sequence[str]) -> str:
    words = ("python", "-m", "rlexp.train", "-m", *flags, *overrides, f"sweep.name={sweep.name}")
    return " ".join(shlex.quote(word) for word in ("env", f"RLEXP_OUTPUTS={sweep.parent.parent}", *words))


def command_line(job: Job) -> str:
    """How to run a job by hand."""
    settings = {SWEEP_DIR: str(job.folder.parent), SWEEP_JOB: job.name}
    return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in settings.items()), *(shlex.quote(word) for word in ("python", *job.command[1:]))])


def run_here(job: Job) -> int:
    """Run one job of a sweep in this terminal. Returns its exit code; why it failed is printed, and a clone that never began is forgotten."""
    print(f"job {job.number} in {job.folder}", flush=True)
    logs = job.folder.parent / "logs"
    with handling() as stop_request, SweepView(1) as view:
        (result,) = run_jobs([job], [{}], logs, view, stop_request)
    if result.state == FAILED:
        if not job.folder.exists() and len(recorded_jobs(job.folder.parent)) == job.number:
            forget_job(job.folder.parent, job.name)
        print(f"error: {result.reason}\nlog: {logs / f'{job.name}.log'}", file=sys.stderr)
        return 1
    if result.state == PREEMPTED:
        print(f"stopped; `python -m rlexp.sweep {job.folder.parent} resume {job.number}` continues it", file=sys.stderr)
        return PREEMPTED_CODE
    return 0
