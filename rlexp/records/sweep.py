"""What a sweep's folder says about its jobs: sweep.json lists them, also those that never made a folder; a mark stands for each that the user stopped."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE, MARKS = "sweep.json", "stopped"


def record_jobs(folder: Path, jobs: Mapping[str, Sequence[str]], reasons: Mapping[str, str] | None = None, flags: Sequence[str] | None = None) -> None:
    """Add jobs (folder name -> overrides) to a sweep's record, which numbers them from 1 in the order they came in.

    reasons: why a job ended as it did, for those that could not say so in a folder of their own. flags: what else the command line of each has,
    e.g. --config-dir; None: as recorded before.
    """
    with _changing(folder) as known:
        for name, overrides in jobs.items():
            before = known.get(name, {}).get("flags", [])
            known[name] = {"overrides": list(overrides), "flags": before if flags is None else list(flags), "reason": (reasons or {}).get(name, "")}


def forget_job(folder: Path, name: str) -> None:
    """Take a job out of the record."""
    with _changing(folder) as known:
        known.pop(name, None)


def forget_empty(folder: Path) -> None:
    """Remove the folder of a sweep that was refused, if there is nothing in it but what Hydra wrote."""
    if folder.is_dir() and {path.name for path in folder.iterdir()} <= {"multirun.yaml"}:
        (folder / "multirun.yaml").unlink(missing_ok=True)
        folder.rmdir()


def recorded_jobs(folder: Path) -> dict[str, Any]:
    """Folder name -> {overrides, flags, reason} of a sweep's jobs, in the order of their numbers; {} for a folder of runs that no sweep made."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def stop_mark(run: Path) -> Path:
    """The file whose presence says that the user stopped the job with this run folder: it ends at its next step, or never starts."""
    return run.parent / MARKS / run.name


@contextmanager
def _changing(folder: Path) -> Iterator[dict[str, Any]]:
    """The record, written back at the end; one process at a time, since a sweep may run while the user clones one of its jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{FILE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = recorded_jobs(folder)
        yield known
        temporary = folder / f".{FILE}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, folder / FILE)
