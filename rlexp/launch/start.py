"""From a validated config to an exit code: the run folder, the ranks, and a truthful status whatever happens."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from rlexp import registry
from rlexp.config.errors import UserError
from rlexp.config.run import RunConfig
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.launch.external import external_rank, share_folder
from rlexp.launch.failure import Failure, failure_of
from rlexp.launch.folder import FAILED, FINISHED, PAUSED, PREEMPTED, STOPPED, RunFolder, now
from rlexp.launch.hosts import LOOPBACK, network_of
from rlexp.launch.jobs import SWEEP_DIR
from rlexp.launch.lock import FolderLock
from rlexp.launch.log import logging_to
from rlexp.launch.opening import open_folder, place
from rlexp.launch.pages import use_large_pages
from rlexp.launch.ranks import run_ranks, worker_command
from rlexp.launch.signals import PAUSED_CODE, PREEMPTED_CODE, StopRequest, handling
from rlexp.launch.watch import follow_parent
from rlexp.tracking.console import short

log = logging.getLogger(__name__)
REPORT_SECONDS = 120.0

Work = Callable[[StopRequest], "tuple[int, Failure | None]"]


def start(config: RunConfig, overrides: Sequence[str]) -> int:
    """Run a validated config. Returns 0 (finished, or paused or stopped as a job of its sweep), 1 (failed, the reason is printed and in status.json) or
    75 (preempted, to be continued).

    Raises UserError when the run folder cannot be used. strategy=single trains here; ranks are spawned, also on the other nodes of a Slurm job. Under
    torchrun or `accelerate launch`, which set RANK, this process is one of their ranks.
    """
    use_large_pages()
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))  # a job of a sweep saves and stops when the sweep is killed
    parent, name, _ = place(config)
    if RunFolder(parent / name).stopped:
        print(f"{name} was stopped by the user: `python -m rlexp.sweep {short(parent)} resume N` lets it go on")
        return 0
    if config.sweep.method == "halving" and not os.environ.get(SWEEP_DIR):
        raise UserError("sweep.method=halving compares the runs of a sweep: add -m and what they differ in, e.g. -m optimizer.learning_rate=1e-5,3e-5")
    cluster = config.cluster
    meeting = registry.CLUSTERS.load(cluster.name)(cluster)
    external = external_rank()
    if external is not None:
        if os.environ.get("LOCAL_WORLD_SIZE") == str(external[1]):
            os.environ.update(_network(config, LOOPBACK))
        return _start_as_rank(config, overrides, *external)
    folder = open_folder(config, overrides)
    if config.strategy.name == "single" and meeting is None:
        os.environ.update(_network(config, LOOPBACK))  # an engine in this process makes a process group of its own
        return _lead(folder, lambda stop: (_run(config, folder, 0, 1), None))
    variables = _network(config, meeting.address if meeting is not None and cluster.nodes > 1 else LOOPBACK)
    ranks = partial(run_ranks, worker_command(folder.path), cluster.processes, folder.ranks_path, nodes=cluster.nodes, meeting=meeting, variables=variables)
    return _lead(folder, ranks)


def _network(config: RunConfig, address: str) -> dict[str, str]:
    """See `network_of`; but NCCL may have to reach servers on other machines."""
    variables = network_of(address)
    if isinstance(config.generation, VLLMServerGenerationConfig):
        variables.pop("NCCL_SOCKET_IFNAME", None)
    return variables


def _start_as_rank(config: RunConfig, overrides: Sequence[str], rank: int, world: int) -> int:
    """Somebody else started the ranks, and this process is one of them."""
    if world > 1 and config.strategy.name == "single":
        raise UserError(f"strategy=single is one process, but {world} were started (WORLD_SIZE): choose strategy=ddp")
    folder = share_folder(rank, lambda: open_folder(config, overrides))
    if folder is None:
        return 1
    if rank != 0:
        return 0 if folder.finished else _follow(config, folder, rank, world)
    if not folder.finished:
        folder.write_status(processes=world)
    return _lead(folder, lambda stop: (_run(config, folder, 0, world), None))


def _run(config: RunConfig, folder: RunFolder, rank: int, world: int) -> int:
    from rlexp.build import run  # imports torch

    return run(config, folder, rank=rank, world=world)


def _lead(folder: RunFolder, work: Work) -> int:
    """The process that holds the folder: says where things are, runs, reports."""
    if folder.finished:
        print(_finished_text(folder))
        return 0
    try:
        with logging_to(folder.log_path), handling() as stop:
            checkpoint = folder.latest_checkpoint
            log.info("run folder %s%s", short(folder.path), f", continuing from {checkpoint.name}" if checkpoint else "")
            code = carry_out(folder, stop, work)
            _write_report(folder)
    finally:
        FolderLock(folder.path).release()
    if code == PREEMPTED_CODE or (code and stop.requested):  # a run that could not be saved goes on from an earlier checkpoint
        stop.chain()
    return code


def _follow(config: RunConfig, folder: RunFolder, rank: int, world: int) -> int:
    """A rank other than 0 that somebody else started: no folder, no status, errors on its own stderr."""
    with handling():
        try:
            code = _run(config, folder, rank, world)
            return 0 if code == PAUSED_CODE else code
        except Exception as error:
            failure = failure_of(error)
            print(f"error: {failure.reason}" if failure.expected else failure.traceback, file=sys.stderr)
            return 1


def carry_out(folder: RunFolder, stop: StopRequest, work: Work) -> int:
    """Do the work of a run and write how it ended to status.json; what went wrong goes to train.log and the console.

    work: gets the stop request; returns an exit code (0, 1, 75, 76) and, for 1, the failure. It may raise anything. When it fails by what a user can fix
    (the data, a reward, the model) before anything was trained, the folder is removed: the corrected command finds its name free.
    """
    failure: Failure | None = None
    try:
        code, failure = work(stop)
    except (Exception, KeyboardInterrupt) as error:
        code, failure = 1, failure_of(error)
    state = STOPPED if code == PAUSED_CODE and folder.stopped else {0: FINISHED, PREEMPTED_CODE: PREEMPTED, PAUSED_CODE: PAUSED}.get(code, FAILED)
    reason = _reason(state, folder, stop) if failure is None else failure.reason
    code = 0 if code == PAUSED_CODE else code
    if failure is not None:
        _say(folder, failure)
        if failure.expected and folder.unused:
            folder.remove()
            return code
    try:
        folder.write_status(state, reason=reason, ended=now(), exit_code=code)
    except OSError as error:  # a full disk: the old status stays, "running" with the pid of a process that is gone, and the run can be continued
        log.error("status.json could not be written: %s", error)
    return code


def _reason(state: str, folder: RunFolder, stop: StopRequest) -> str | None:
    """Why a run that did not fail ended before its last step; None when it did not."""
    where = "" if folder.saved_step is None else f" at step {folder.saved_step}"
    return {PREEMPTED: stop.reason, PAUSED: f"paused{where} by the sweep", STOPPED: f"stopped{where} by the user"}.get(state)


def _say(folder: RunFolder, failure: Failure) -> None:
    """The failure on the console; the traceback in train.log, and on the console too unless the reason says all."""
    if failure.traceback and not failure.expected:
        print(failure.traceback.rstrip(), file=sys.stderr)
    print(f"error: {failure.reason}", file=sys.stderr)
    try:
        with open(folder.log_path, "a", encoding="utf-8") as file:
            file.write(f"{now()} ERROR {failure.reason}\n{failure.traceback}\n")
    except OSError:
        traceback.print_exc()


def _write_report(folder: RunFolder) -> None:
    """report.html, by a program of its own: no failure there can touch the run."""
    if not folder.metrics_path.exists():
        return
    command = [sys.executable, "-m", "rlexp.report", str(folder.path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPORT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("report.html was not written: %s", error)
        return
    if done.returncode:
        log.warning("report.html was not written: %s", done.stderr.strip().removeprefix("error: ")[-2000:])


def _finished_text(folder: RunFolder) -> str:
    """What a finished run says when it is started again."""
    summary = folder.summary() or {}
    evaluation = summary.get("evaluation") or {}
    accuracies = [evaluation.get(when, {}).get("accuracy") for when in ("start", "end")]
    learnt = f", accuracy {accuracies[0]:.3f} -> {accuracies[1]:.3f}" if None not in accuracies else ""
    return (
        f"{short(folder.path)} is finished ({summary.get('steps', '?')} steps{learnt}).\n"
        "A larger trainer.max_steps continues it; run.resume=never trains it anew; another run.name starts a second one."
    )
