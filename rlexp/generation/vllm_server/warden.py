"""Holds one server process and outlives nobody: `python warden.py PARENT_PID GRACE COMMAND...`.

The server gets a process group of its own, all of which ends when the trainer does, also by SIGKILL, or when this process is asked to stop.
Only the standard library is imported, so that it starts in milliseconds and takes no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

EVERY = 0.2
"""Seconds between two looks at the parent"""
LOOK = 10.0
"""Seconds between two looks at what the group holds in shared memory"""
GRACE = 5.0
"""Seconds the group usually gets between SIGTERM and SIGKILL"""
AFTER_DEATH = 1.0
"""Seconds the group gets when the server died or hangs: nothing is left to save"""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
SHIELDED = "SLURM_JOB_ID" in os.environ
"""Slurm sends its SIGTERM to every process of a job, while the trainer still wants to finish its step: the server must not see it, and is ended by SIGINT"""

stopping: int | None = None
"""the signal that asked us to stop: SIGINT means at once"""


def _die_with_parent() -> None:
    """Runs in the child before exec: should the warden itself be killed, the kernel ends the server (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if SHIELDED:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _adopt() -> None:
    """Processes whose parent in the group died become our children, so that they can be waited for (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _signal_group(group: int, number: int) -> bool:
    """Returns whether there was anybody to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap() -> None:
    """Collect children that ended; those that were adopted have nobody else."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def shared_memory_of(group: int) -> set[str]:
    """Shared memory of Python's multiprocessing that processes of the group hold (Linux). One that is killed leaves its files behind."""
    found = set()
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            with contextlib.suppress(OSError, ProcessLookupError):
                if os.getpgid(int(entry)) == group:
                    with open(f"/proc/{entry}/maps") as file:
                        found |= {line.split()[-1] for line in file if "/dev/shm/psm_" in line and not line.endswith("(deleted)\n")}
    return found


def end_group(group: int, grace: float, memory: set[str]) -> None:
    """SIGTERM (or SIGINT), `grace` seconds of patience, SIGKILL, until the group is empty; then the shared memory it left goes too."""
    memory |= shared_memory_of(group)
    _signal_group(group, signal.SIGINT if SHIELDED else signal.SIGTERM)
    deadline = time.monotonic() + grace
    while _signal_group(group, 0):
        _reap()
        if time.monotonic() > deadline:
            _signal_group(group, signal.SIGKILL)
        time.sleep(EVERY / 4)
    for path in memory:
        with contextlib.suppress(OSError):
            os.unlink(path)


def main(parent: int, grace: float, command: list[str]) -> int:
    """Run the command until it ends or nobody needs it. Returns its exit code, 128 + signal number for a signal."""

    def stop(number: int, frame: FrameType | None) -> None:
        global stopping
        stopping = number

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if SHIELDED and number == signal.SIGTERM else stop)
    _adopt()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)
    memory: set[str] = set()
    looked = time.monotonic()
    while stopping is None and os.getppid() == parent and server.poll() is None:
        time.sleep(EVERY)
        if time.monotonic() - looked > LOOK:
            memory, looked = memory | shared_memory_of(server.pid), time.monotonic()
    code = server.poll()
    hurry = code is not None or stopping == signal.SIGINT
    end_group(server.pid, min(grace, AFTER_DEATH) if hurry else grace, memory)
    if code is None:
        code = server.returncode or 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
