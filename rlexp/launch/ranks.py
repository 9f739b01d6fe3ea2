"""Rank processes of one machine: spawned, watched, and ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlexp.launch.failure import Failure
from rlexp.launch.files import read_json, write_json
from rlexp.launch.signals import PAUSED_CODE, PREEMPTED_CODE, StopRequest
from rlexp.launch.watch import PARENT

POLL = 0.1
GRACE = 1.0
"""Seconds between the first rank's death and the end of the others: time for them to say why, if they failed too"""
CLEAN = (None, 0, PREEMPTED_CODE, PAUSED_CODE)
"""Exit codes of ranks without a failure (None: still running)"""
TAIL = 60
"""Lines of a dead rank's output shown on the console"""


@dataclass
class Rank:
    """One rank process. The output of rank 0 is the console, that of the others a file."""

    number: int
    process: subprocess.Popen[bytes]
    output: Path | None

    def kill(self, number: int) -> None:
        """Send a signal to the process; SIGKILL to all of its group, so that no child of a rank outlives it."""
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        elif self.process.poll() is None:
            self.process.send_signal(number)


def free_port() -> int:
    """A TCP port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(command: Sequence[str], world: int, folder: Path, stop: StopRequest) -> tuple[int, Failure | None]:
    """Run `command` as `world` ranks and wait. Returns the exit code (0, 1 or 75) and, for 1, what went wrong with the rank that failed first.

    command: a program and its arguments; it finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.
    folder: gets the output of ranks 1, 2, … as rank_N.log and errors as rank_N.json (`write_failure`). Signals that `stop` receives are passed on;
    when one rank fails the others are killed within seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    port = free_port()
    ranks: list[Rank] = []

    def forward(number: int) -> None:
        for rank in ranks:
            rank.kill(number)

    stop.forward = forward
    try:
        for number in range(world):
            ranks.append(_spawn(command, number, world, port, folder))
            if stop.requested:
                ranks[-1].kill(stop.signal or signal.SIGTERM)
        return _watch(ranks, folder, stop)
    finally:
        stop.forward = None
        for rank in ranks:
            rank.kill(signal.SIGKILL)
            rank.process.wait()


def _spawn(command: Sequence[str], number: int, world: int, port: int, folder: Path) -> Rank:
    environment = {
        **os.environ,
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        PARENT: str(os.getpid()),
    }
    output = None if number == 0 else folder / f"rank_{number}.log"
    # Sessions of their own: a Ctrl-C in the terminal reaches the parent alone, which passes it on once.
    if output is None:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    else:
        with open(output, "wb") as file:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    return Rank(number, process, output)


def _watch(ranks: list[Rank], folder: Path, stop: StopRequest) -> tuple[int, Failure | None]:
    while any(rank.process.poll() is None for rank in ranks):
        if any(rank.process.poll() not in CLEAN for rank in ranks):
            time.sleep(GRACE)
            break
        time.sleep(POLL)
    codes = {rank.number: rank.process.poll() for rank in ranks}
    failed = [rank for rank in ranks if codes[rank.number] not in CLEAN]
    if failed and stop.signal is not None and all(codes[rank.number] == -stop.signal for rank in failed):
        return PREEMPTED_CODE, None  # passed on to ranks that were just starting and had no handler for it yet
    if failed:
        return 1, _first_failure(failed, folder)
    return max(code for code in codes.values() if code is not None), None


def _first_failure(failed: list[Rank], folder: Path) -> Failure:
    """The failure that caused the others: a rank killed by a signal says nothing, so it comes before those that complain about it; else the earliest."""
    silent = [rank for rank in failed if read_json(_error_path(folder, rank.number)) is None]
    if silent:
        rank = silent[0]
        code = rank.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return Failure(f"rank {rank.number} {how}{hint}", _tail(rank), expected=False)
    notes = sorted((read_json(_error_path(folder, rank.number)) for rank in failed), key=lambda note: note["time"])
    first: dict[str, Any] = notes[0]
    return Failure(f"rank {first['rank']}: {first['reason']}", first["traceback"], first["expected"])


def write_failure(folder: Path, rank: int, failure: Failure, culprit: int | None = None) -> None:
    """Leave word, from a rank process, why it ends. culprit: the rank that failed, when it was another."""
    note = {
        "rank": rank if culprit is None else culprit,
        "time": time.time(),
        "reason": failure.reason,
        "traceback": failure.traceback,
        "expected": failure.expected,
    }
    write_json(_error_path(folder, rank), note)


def _error_path(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.json"


def _tail(rank: Rank) -> str:
    if rank.output is None:
        return ""
    return "\n".join(rank.output.read_text(errors="replace").splitlines()[-TAIL:])


def worker_command(folder: Path) -> list[str]:
    """The program that runs one rank of the run in a folder."""
    return [sys.executable, "-m", "rlexp.launch.worker", str(folder)]
