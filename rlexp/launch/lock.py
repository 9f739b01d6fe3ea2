"""The lock of a run folder: one process at a time, known by host, pid and the time it began."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from rlexp.launch.slurm.queue import JOB, runs

HALF_WRITTEN = 1.0
"""Seconds after which a lock without contents counts as left by a process that died while it made it"""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    host: str
    pid: int
    born: int
    """start time of the process in clock ticks since boot (0 where /proc does not tell), because pids are used again"""
    job: str = ""
    """its Slurm job, if it is in one: whether that runs can be asked from other machines"""

    @property
    def alive(self) -> bool:
        """Whether that process lives. A process of another host counts as alive, as it cannot be seen from here, unless Slurm says its job is over."""
        if self.host != socket.gethostname():
            return not self.job or runs(self.job)
        return is_alive(self.pid) and self.born in (0, born(self.pid))


class Held(Exception):
    """The folder is in use by a live process."""

    def __init__(self, folder: Path, holder: Holder | None) -> None:
        self.folder, self.holder = folder, holder
        who = f"process {holder.pid} on {holder.host}" if holder else "a process that is just starting"
        super().__init__(f"{folder} is in use by {who}")


def is_alive(pid: int) -> bool:
    """Whether a process of this host exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = _stat(pid)
    return stat is None or stat[0] != "Z"


def born(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 when the system does not tell."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the command's name (proc(5)): state first, start time at index 19."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def current() -> Holder:
    """This process."""
    return Holder(socket.gethostname(), os.getpid(), born(os.getpid()), os.environ.get(JOB, ""))


def holder_of(path: Path) -> Holder | None:
    """Who holds the lock file; None for a file without sense. Raises FileNotFoundError when there is no lock."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        return None


class FolderLock:
    """The file `lock` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"

    def acquire(self) -> None:
        """Take the lock, also from a dead process of this host. Raises Held when a live process has it."""
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            self._take_over()
            return
        try:
            with os.fdopen(handle, "w") as file:
                self._write(file)
        except OSError:  # a full disk: nobody could tell whose lock it is
            self.path.unlink()
            raise

    def release(self) -> None:
        """Give the lock back, if this process has it."""
        try:
            if holder_of(self.path) == current():
                self.path.unlink()
        except FileNotFoundError:
            return

    def _take_over(self) -> None:
        """Replace a dead holder. The advisory lock lets one of several processes that find the same dead holder win."""
        try:
            file = open(self.path, "r+")  # noqa: SIM115 (closed below, after the exclusive section)
        except FileNotFoundError:  # given back just now
            return self.acquire()
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Held(self.path.parent, None) from None
            if not self.path.exists() or os.fstat(file.fileno()).st_ino != self.path.stat().st_ino:  # given back, perhaps taken anew
                return self.acquire()
            holder = holder_of(self.path)
            if holder is None and time.time() - os.fstat(file.fileno()).st_mtime < HALF_WRITTEN:
                raise Held(self.path.parent, None)
            if holder is not None and holder != current() and holder.alive:
                raise Held(self.path.parent, holder)
            file.truncate(0)
            self._write(file)

    @staticmethod
    def _write(file: TextIO) -> None:
        file.write(json.dumps(asdict(current())))
        file.flush()
        os.fsync(file.fileno())
