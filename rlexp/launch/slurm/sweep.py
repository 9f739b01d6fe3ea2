"""A sweep whose jobs are Slurm's: what is submitted, what was there before, and how each job ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlexp.config.cluster import SlurmClusterConfig
from rlexp.config.run import RunConfig
from rlexp.config.saved import load_config
from rlexp.launch.files import read_json, write_json
from rlexp.launch.folder import FAILED, FINISHED, PAUSED, PREEMPTED, RUNNING, STOPPED, RunFolder, now
from rlexp.launch.identity import differing, wants_more
from rlexp.launch.jobs import NOT_STARTED, SKIPPED, Job, Result, last_words
from rlexp.launch.signals import PREEMPTED_CODE, StopRequest, handling
from rlexp.launch.slurm import queue
from rlexp.launch.slurm.job import FOLDER, SlurmRun, head_of_life
from rlexp.launch.slurm.queue import State
from rlexp.launch.slurm.script import parameters, script_text
from rlexp.launch.slurm.submit import submit
from rlexp.launch.sweep_view import SweepView
from rlexp.records.sweep import stop_mark

RECORD = "jobs.json"
"""In FOLDER: name of each run -> the job that has it"""
SILENCE = 300.0
"""Seconds without an answer of Slurm after which that is said"""


@dataclass
class Submitted:
    """A run and its job.

    since: when this process began to look at it. new: whether this process submitted it. withdrawn: whether it was taken out of the queue again.
    """

    job: Job
    id: str
    since: float
    new: bool = True
    running: bool = False
    withdrawn: bool = False


def preview(configs: Sequence[RunConfig], folder: Path) -> str:
    """What would be submitted, for cluster.dry_run=true."""
    return "\n".join(script_text(cluster, _job_name(folder), folder / FOLDER, len(members)) for cluster, members in _arrays(configs))


def submit_sweep(jobs: Sequence[Job], configs: Mapping[str, RunConfig], folder: Path) -> tuple[list[Submitted], list[Result]]:
    """Submit what neither is finished, nor in the queue from an earlier time, nor stopped by the user. Returns the jobs in the queue, and how the others are.

    configs: name -> config of each job. Raises UserError when Slurm refuses.
    """
    settled: list[Result] = []
    waiting: list[Job] = []
    found: dict[str, Submitted] = {}
    ids: dict[str, str] = read_json(folder / FOLDER / RECORD) or {}
    known = queue.states([ids[job.name] for job in jobs if job.name in ids]) or {}
    for job in jobs:
        state = known.get(ids.get(job.name, ""))
        if is_done(configs[job.name], job.folder):
            settled.append(Result(job, SKIPPED))
        elif stop_mark(job.folder).exists():
            settled.append(Result(job, STOPPED, "by the user"))
        elif state is not None and not state.over:
            found[job.name] = Submitted(job, ids[job.name], time.monotonic(), new=False)
        else:
            waiting.append(job)
    for cluster, members in _arrays([configs[job.name] for job in waiting]):
        (folder / FOLDER).mkdir(exist_ok=True)
        runs = [SlurmRun(folder, waiting[number].name, waiting[number].arguments, cluster.nodes + cluster.vllm_nodes) for number in members]
        for number, job_id in zip(members, submit(runs, cluster, _job_name(folder), folder / FOLDER), strict=True):
            found[waiting[number].name] = Submitted(waiting[number], job_id, time.monotonic())
            ids[waiting[number].name] = job_id
        write_json(folder / FOLDER / RECORD, ids)
    return [found[job.name] for job in jobs if job.name in found], settled


def is_done(config: RunConfig, folder: Path) -> bool:
    """Whether a run would find itself finished."""
    run = RunFolder(folder)
    if config.run.resume == "never" or run.status().get("status") != FINISHED:
        return False
    before = load_config(run.config_path)
    return not differing(before, config) and not wants_more(before, config, run.summary())


def _job_name(folder: Path) -> str:
    return f"rlexp-{folder.name}"


def _arrays(configs: Sequence[RunConfig]) -> list[tuple[SlurmClusterConfig, list[int]]]:
    """The jobs (their numbers) that ask Slurm for the same: each set is one array."""
    arrays: dict[str, tuple[SlurmClusterConfig, list[int]]] = {}
    for number, config in enumerate(configs):
        assert isinstance(config.cluster, SlurmClusterConfig)
        arrays.setdefault(repr(parameters(config.cluster, "")), (config.cluster, []))[1].append(number)
    return list(arrays.values())


def submitted_text(submitted: Sequence[Submitted], settled: Sequence[Result], folder: Path) -> str:
    """Where the jobs are, a line for each, and how to look at them."""
    new = [item for item in submitted if item.new]
    lines = [f"{len(new)} jobs submitted, {len(submitted) - len(new)} in the queue before, {len(settled)} settled before, in {folder}"]
    lines += [f"  job {item.job.number}: {item.id}  {item.job.label}" for item in submitted]
    if submitted:
        whole = " ".join(dict.fromkeys(item.id.partition("_")[0] for item in submitted))
        lines.append(f"`python -m rlexp.sweep {folder}` shows how they do, the same command waits for them, `scancel {whole}` ends them")
    return "\n".join(lines)


def wait_for_sweep(submitted: Sequence[Submitted], settled: Sequence[Result], folder: Path, poll: float, *, stop_on_failure: bool = False) -> list[Result]:
    """Wait until all have ended. Ctrl-C leaves them alone and ends the program. stop_on_failure: once one has failed, those still in the queue leave it."""
    results: dict[str, Result] = {result.job.name: result for result in settled}
    answered = time.monotonic()
    with handling(announce=False) as stop, SweepView(len(submitted) + len(settled)) as view:
        for result in settled:
            view.ended(result)
        left = list(submitted)
        while left and not stop.requested:
            known = queue.states([item.id for item in left])
            if known is not None:
                answered = time.monotonic()
            elif time.monotonic() - answered > SILENCE:
                print(f"Slurm has not answered for {time.monotonic() - answered:.0f} s; still waiting", file=sys.stderr, flush=True)
                answered = time.monotonic()
            for item in list(left) if known is not None else ():
                state = known.get(item.id) if known else None
                if state is not None and state.name in queue.RUNNING and not item.running:
                    item.running = True
                    view.started(item.job)
                if state is None or state.over:
                    left.remove(item)
                    results[item.job.name] = Result(item.job, NOT_STARTED) if item.withdrawn else how_it_ended(item, state, folder / "logs")
                    view.ended(results[item.job.name])
            if stop_on_failure and any(result.state == FAILED for result in results.values()):
                _withdraw([item for item in left if not item.running and not item.withdrawn])
            view.refresh()
            _pause(poll if left else 0, stop, view)
    if stop.requested:
        print(f"{len(left)} jobs go on without this program; the same command waits for them again", file=sys.stderr)
        sys.exit(PREEMPTED_CODE)
    order = {job.name: job.number for job in [*(item.job for item in submitted), *(result.job for result in settled)]}
    return sorted(results.values(), key=lambda result: order[result.job.name])


def _withdraw(waiting: Sequence[Submitted]) -> None:
    """Take jobs out of the queue. One that has just started goes on, and is told from the others by its state when it has ended."""
    if waiting:
        queue.withdraw([item.id for item in waiting])
        known = queue.states([item.id for item in waiting]) or {}
        for item in waiting:
            item.withdrawn = item.id not in known or known[item.id].name == "CANCELLED"


def _pause(seconds: float, stop: StopRequest, view: SweepView) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop.requested:
        view.refresh()
        time.sleep(min(0.2, seconds))


def how_it_ended(item: Submitted, state: State | None, logs: Path) -> Result:
    """The result of a job that has ended, by its own status.json and, where it could write none, by what Slurm says (None: nothing any more).

    A run that was killed is `running` in its status.json; that is corrected here.
    """
    folder, seconds = RunFolder(item.job.folder), time.monotonic() - item.since
    status = folder.status()
    said, reason, own = str(status.get("status", "")), str(status.get("reason", "")), status.get("slurm_job") == item.id
    slurm = _slurm_says(item, state)
    if own and said in (FINISHED, FAILED, PAUSED, STOPPED):
        return Result(item.job, said, reason, seconds)
    if own and said == PREEMPTED:
        return Result(item.job, PREEMPTED, f"{reason}; {slurm}", seconds)
    if own and said == RUNNING:
        folder.write_status(FAILED, reason=slurm, ended=now())
        return Result(item.job, FAILED, slurm, seconds)
    if said == FINISHED and (state is None or state.name == "COMPLETED"):
        return Result(item.job, SKIPPED, "", seconds)
    return Result(item.job, FAILED, _words_of(item.id, logs / f"{item.job.name}.log") or slurm, seconds)


def _words_of(job: str, log: Path) -> str:
    """The error that a job put into its log before it had a run folder; empty when the log is an earlier job's."""
    if not log.is_file() or f"{head_of_life(job)} " not in log.read_text(errors="replace"):
        return ""
    return last_words(log)


def _slurm_says(item: Submitted, state: State | None) -> str:
    if state is None:
        return f"Slurm no longer knows job {item.id}, and the run left no word"
    details = ", ".join(part for part in (state.reason if state.reason != "NonZeroExitCode" else "", queue.exit_code(item.id)) if part)
    return f"Slurm: {state.name}{f' ({details})' if details else ''}, job {item.id}"
