"""sweep=halving: successive halving (Jamieson & Talwalkar 2016, arXiv 1502.07943, algorithm 1) over the jobs of a sweep.

All jobs train to a first rung and pause there by a checkpoint; the best of them (one in eta) go on to the next rung, eta times as far, and so on; who is left
trains to the end. A rung is decided once all its jobs are there, so who goes on does not depend on which job was faster; the asynchronous form (ASHA,
Li et al. 2020, arXiv 1810.05934) keeps more machines busy and lets jobs go on by the order in which they arrive. Decisions are a function of the runs' own
folders: a sweep that was interrupted continues, and one that is settled starts nothing. How jobs are run is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlexp.config.errors import UserError
from rlexp.config.sweep import SweepConfig
from rlexp.launch.files import write_json
from rlexp.launch.folder import FAILED, FINISHED, PAUSED, PREEMPTED, STOPPED, RunFolder
from rlexp.launch.jobs import NOT_STARTED, SKIPPED, Job, Result
from rlexp.records.sweep import stop_mark
from rlexp.tracking.jsonl import read_lines

RECORD = "halving.json"
"""In the sweep's folder: each rung with the values of its jobs, best first, and who went on"""

Run = Callable[[Sequence[Job]], list[Result]]


def rungs(settings: SweepConfig, jobs: int, total: int | None, every: int) -> list[int]:
    """The steps at which runs are compared, ascending, all before the last step.

    total: steps of a run, None when only its data tell. every: evaluation.steps, of which each rung is a multiple. As many rungs as leave one job; the
    first at total / eta^rungs, rounded up, unless sweep.min_steps says where. Raises UserError when there is none.
    """
    eta, depth = settings.reduction, 0
    while eta ** (depth + 1) <= jobs:
        depth += 1
    if depth == 0:
        raise UserError(f"sweep.reduction={eta} lets one run in {eta} go on, and the sweep has {jobs}: add jobs, or leave out sweep=halving")
    first = settings.min_steps
    if first is None and total is None:
        raise UserError("sweep=halving does not know how long a run is: set trainer.max_steps, or sweep.min_steps for the first rung")
    if first is None:
        assert total is not None
        first = -(-total // (eta**depth * every)) * every
    elif first % every:
        raise UserError(f"sweep.min_steps={first} is no multiple of evaluation.steps={every}: runs are compared by the evaluation at that step")
    if total is not None and first >= total:
        raise UserError(
            f"the first rung, step {first}, is not before the last step, trainer.max_steps={total}: lower sweep.min_steps, or evaluation.steps={every}"
        )
    return [first * eta**number for number in range(depth) if total is None or first * eta**number < total]


@dataclass(frozen=True)
class Halving:
    """What decides. rungs: as of `rungs`."""

    settings: SweepConfig
    rungs: Sequence[int]

    def run(self, jobs: Sequence[Job], run: Run, say: Callable[[str], None]) -> tuple[list[Result], int]:
        """Bring the jobs to where they belong. Returns how each stands, in order, and how many of them were started.

        run: runs jobs and returns a result for each. say: gets a line for each rung. Ends early when a job was preempted or not started.
        """
        ended: dict[str, Result] = {}
        decided: list[dict[str, Any]] = []
        racing = list(jobs)
        for number, step in enumerate([*self.rungs, None], start=1):
            due = [job for job in racing if not _reached(job, step) and not _out(job)]
            if due:
                where = f"step {step}" if step is not None else "its end" if len(due) == 1 else "their end"
                say(f"rung {number} of {len(self.rungs) + 1}: {_count(due)} to {where}")
                ended.update({result.job.name: result for result in run([_until(job, step) for job in due])})
            if any(self._interrupts(ended[job.name]) for job in due) or step is None:
                break
            racing = self._decide(step, racing, decided, say)
        write_json(jobs[0].folder.parent / RECORD, {"metric": self.settings.metric, "mode": self.settings.mode, "rungs": decided})
        return [_standing(job, ended.get(job.name)) for job in jobs], len(ended)

    def _interrupts(self, result: Result) -> bool:
        return result.state in (PREEMPTED, NOT_STARTED) or (self.settings.stop_on_failure and result.state == FAILED)

    def _decide(self, step: int, racing: Sequence[Job], decided: list[dict[str, Any]], say: Callable[[str], None]) -> list[Job]:
        """Who goes on from a rung: the best, the earlier job of two that are equal. The others' status says why they do not."""
        there = [(job, self.value(job, step)) for job in racing if _reached(job, step) and not _out(job)]
        sign = -1 if self.settings.mode == "max" else 1
        known = sorted(((job, value) for job, value in there if value is not None), key=lambda pair: sign * pair[1])
        if there and not known:
            raise UserError(f"no run has sweep.metric={self.settings.metric} in its evaluation at step {step}: choose one that is in their metrics.jsonl")
        going = known[: max(1, len(known) // self.settings.reduction)]
        for place, (job, value) in enumerate(known, start=1):
            if place > len(going):
                _explain(job, f"not promoted at step {step} ({self.settings.metric} {value:.4g}, place {place} of {len(known)}, {_go(len(going))} on)")
        for job in [job for job, value in there if value is None]:
            _explain(job, f"not promoted at step {step} (no {self.settings.metric} in its evaluation there)")
        values = {job.name: value for job, value in known}
        decided.append({"step": step, "values": values, "promoted": [job.name for job, _ in going]})
        if going:
            numbers = ", ".join(str(job.number) for job, _ in going)
            say(f"step {step}: of {len(racing)}, {_go(len(going))} on, {self.settings.metric} {going[-1][1]:.4g} or better: job {numbers}")
        return [job for job in racing if job.name in decided[-1]["promoted"]]

    def value(self, job: Job, step: int | None = None) -> float | None:
        """The metric of a job's evaluation at a step; of its last one when it ended before, or for None. None without such a value."""
        lines = [line for line in read_lines(RunFolder(job.folder).metrics_path) if line["split"] == "eval"]
        found = [line for line in lines if line["step"] == step] or ([] if step is not None and not _reached(job, None) else lines[-1:])
        return found[0].get(self.settings.metric) if found else None

    def summary(self, jobs: Sequence[Job], total: int | None) -> str:
        """The best finished job, and the steps that were trained of those that all jobs to their end would have been."""
        finished = [(job, value) for job in jobs if _reached(job, None) and (value := self.value(job)) is not None]
        steps = sum(int((RunFolder(job.folder).summary() or {}).get("steps", 0)) for job in jobs)
        trained = f"{steps} steps trained" if total is None else f"{steps} of {total * len(jobs)} steps trained"
        if not finished:
            return trained
        best = (max if self.settings.mode == "max" else min)(finished, key=lambda pair: pair[1])
        return f"best: job {best[0].number}, {best[0].label}, {self.settings.metric} {best[1]:.4g}; {trained}"


def settled_text(jobs: int, started: int) -> str:
    """How many jobs needed nothing, and how many were run."""
    return f"{jobs - started} settled earlier, {started} run"


def _until(job: Job, step: int | None) -> Job:
    return job if step is None else replace(job, command=(*job.command, f"sweep.pause_at={step}"))


def _reached(job: Job, step: int | None) -> bool:
    """Whether a job has a checkpoint of a step or a later one, or is finished (which None asks for)."""
    folder = RunFolder(job.folder)
    if folder.status().get("status") == FINISHED:
        return True
    return step is not None and (folder.saved_step or 0) >= step


def _out(job: Job) -> bool:
    """Whether the user stopped a job before it was finished."""
    return stop_mark(job.folder).exists() and not _reached(job, None)


def _explain(job: Job, why: str) -> None:
    """Write to a run's status why it does not go on. A finished one, and one that somebody runs by hand, is left as it is."""
    folder = RunFolder(job.folder)
    reason = f"paused at step {folder.saved_step} by the sweep: {why}"
    status = folder.status()
    if status.get("status") in (PAUSED, PREEMPTED) and (status["status"], status.get("reason")) != (PAUSED, reason):
        folder.write_status(PAUSED, reason=reason)


def _standing(job: Job, ended: Result | None) -> Result:
    """How a job stands, by its result if it failed or did not start, else by its status."""
    if ended is not None and ended.state in (FAILED, NOT_STARTED, PREEMPTED):
        return ended
    status = RunFolder(job.folder).status()
    state = STOPPED if _out(job) else str(status.get("status", NOT_STARTED))
    state = SKIPPED if state == FINISHED and ended is None else state
    return Result(job, state, str(status.get("reason", "")), 0.0 if ended is None else ended.seconds)


def _count(jobs: Sequence[Job]) -> str:
    return f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"


def _go(count: int) -> str:
    return f"{count} goes" if count == 1 else f"{count} go"
