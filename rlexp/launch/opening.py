"""Finding the run folder a command means: a new one, an unfinished one to continue, or a finished one."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.config.names import run_name
from rlexp.config.run import RunConfig
from rlexp.config.saved import config_text, load_config
from rlexp.launch.files import write_text
from rlexp.launch.folder import FINISHED, RUNNING, RunFolder, now, outputs_root
from rlexp.launch.identity import differing, fingerprint, wants_more
from rlexp.launch.jobs import SWEEP_DIR, SWEEP_JOB
from rlexp.launch.lock import FolderLock, Held
from rlexp.launch.slurm.queue import SUBMITTED
from rlexp.launch.versions import git_commit, versions


def open_folder(config: RunConfig, overrides: Sequence[str]) -> RunFolder:
    """Find or make the folder of a run and lock it. Call it after validation: it is the first thing that touches the disk.

    A folder with the same config is continued, or found finished; with another config it is refused. A folder that a live process holds is refused when
    its name was given, else NAME-2, NAME-3, … is taken. run.resume=never moves an old folder away first; must refuses to begin a new one.
    Raises UserError for all that is refused.
    """
    parent, name, given = place(config)
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            return _open(path, config, overrides)
        except Held as held:
            if given:
                raise UserError(f"{held}: wait for it, or choose another run.name (run.name={name} was given); {_unsure(held)}") from None
        except OSError as error:
            raise UserError(
                f"the run folder {path} cannot be written ({error.strerror}): make that possible, or set RLEXP_OUTPUTS=FOLDER to keep runs elsewhere"
            ) from error
    raise AssertionError("unreachable")


def check_before_start(config: RunConfig, path: Path | None = None) -> None:
    """What only the generator and the disk can tell, before anything is started or submitted: arguments of the sampler, and where the weights come from.

    path: the run folder, where `place` does not know it yet. Raises UserError; not when run.start_from is gone and the run has a checkpoint of its own.
    """
    if config.generation.generation_kwargs:
        from rlexp.generation.base import sampling_from

        sampling_from(config.generation)  # the generator knows which arguments it takes
    if path is None:
        parent, name, _ = place(config)
        path = parent / name
    if config.run.start_from is None or RunFolder(path).latest_checkpoint is not None:
        return
    if not Path(config.run.start_from).is_dir():
        raise UserError(f"run.start_from={config.run.start_from} is no folder: give a checkpoint folder, e.g. outputs/NAME/checkpoints/latest")


def place(config: RunConfig) -> tuple[Path, str, bool]:
    """Parent folder and name of the run's folder, and whether that name is fixed (given by the user or by the sweep)."""
    if os.environ.get(SWEEP_DIR):
        return Path(os.environ[SWEEP_DIR]).absolute(), os.environ.get(SWEEP_JOB) or run_name(config), True
    return outputs_root(), run_name(config), config.run.name is not None


def _unsure(held: Held) -> str:
    return f"if that process is gone, delete {held.folder / 'lock'}"


def _open(path: Path, config: RunConfig, overrides: Sequence[str]) -> RunFolder:
    """Open one folder. Raises Held or UserError, and then leaves no trace."""
    existed = path.exists()
    if not (path / "config.yaml").exists():
        if config.run.resume == "must":
            raise UserError(f"run.resume=must, but there is no run to continue in {path}: check run.name and RLEXP_OUTPUTS, or drop run.resume")
        if existed and not path.is_dir():
            raise UserError(f"{path} is a file, so no run can live there: choose another run.name")
        if existed and any(item.name != "lock" and not item.name.endswith(".tmp") for item in path.iterdir()):
            raise UserError(f"{path} exists and is not a run folder: choose another run.name")
    path.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(path)
    fresh = False
    try:
        lock.acquire()
        fresh = not (path / "config.yaml").exists()
        folder = _decide(path, config)
        if not folder.finished:
            _begin(folder, config, overrides)
        return folder
    except Held:
        raise
    except BaseException:
        lock.release()
        if not existed and (fresh or not any(path.iterdir())):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _decide(path: Path, config: RunConfig) -> RunFolder:
    """What to do with a folder that this process has locked."""
    folder = RunFolder(path)
    if not folder.config_path.exists():
        return RunFolder(path, fresh=True)
    if config.run.resume == "never":
        old = folder.move_away()
        FolderLock(old).release()
        path.mkdir(exist_ok=True)
        FolderLock(path).acquire()
        return RunFolder(path, fresh=True)
    before = load_config(folder.config_path)
    changed = differing(before, config)
    if changed:
        raise UserError(
            f"{path} holds a run with another configuration:\n  "
            + "\n  ".join(changed)
            + f"\nchoose another name, e.g. run.name={path.name}-b, or replace that run by run.resume=never (it is moved to {path.name}.old-1)"
        )
    if folder.status().get("status") != FINISHED:
        return folder
    if not wants_more(before, config, folder.summary()):
        return RunFolder(path, finished=True)
    if folder.latest_checkpoint is None:
        raise UserError(f"{path} is finished and kept no checkpoint that more steps could start from: run.resume=never trains it anew")
    return folder


def _begin(folder: RunFolder, config: RunConfig, overrides: Sequence[str]) -> None:
    folder.tidy()
    write_text(folder.config_path, config_text(config))
    write_text(folder.path / "overrides.txt", "".join(f"{override}\n" for override in overrides))
    for name in ("rollouts", "checkpoints"):
        (folder.path / name).mkdir(exist_ok=True)
    folder.write_status(
        RUNNING,
        reason=None,
        ended=None,
        exit_code=None,
        started=now(),
        first_started=folder.status().get("first_started") or now(),
        host=socket.gethostname(),
        pid=os.getpid(),
        processes=config.cluster.processes,
        slurm_job=os.environ.get(SUBMITTED),
        fingerprint=fingerprint(config),
        versions=versions(),
        git_commit=git_commit(),
    )
