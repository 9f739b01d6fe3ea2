"""Rank processes of a run: spawned, watched, and ended together, on this machine and on the other nodes of its job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlexp.distributed.rendezvous import LAUNCHED
from rlexp.launch.failure import Failure
from rlexp.launch.files import read_json, write_json
from rlexp.launch.meeting import Meeting, Node
from rlexp.launch.signals import PAUSED_CODE, PREEMPTED_CODE, StopRequest
from rlexp.launch.watch import PARENT
from rlexp.records.server_nodes import ServerNodes

LOOPBACK = "127.0.0.1"
POLL = 0.1
GRACE = 1.0
"""Seconds between the first rank's death and the end of the others: time for them to say why, if they failed too"""
CLEAN = (None, 0, PREEMPTED_CODE, PAUSED_CODE)
"""Exit codes of ranks without a failure (None: still running)"""
TAIL = 60
"""Lines of a dead rank's output shown on the console"""


@dataclass(frozen=True)
class Group:
    """What the ranks of a run have in common. address, port: where rank 0 listens for the others. variables: further environment."""

    world: int
    per_node: int
    address: str
    port: int
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def environment(self, number: int) -> dict[str, str]:
        """The environment of one rank, as torchrun names things."""
        return {
            "RANK": str(number),
            "LOCAL_RANK": str(number % self.per_node),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(number // self.per_node),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            LAUNCHED: "1",
            PARENT: str(os.getpid()),
            **self.variables,
        }


class AnyRank(Protocol):
    """A rank, wherever it runs."""

    number: int

    @property
    def code(self) -> int | None:
        """Exit code, minus the number of the signal that killed it; None while it runs."""

    def kill(self, number: int) -> None:
        """Send it a signal."""

    def note(self) -> dict[str, Any] | None:
        """What it wrote down with `write_failure`."""

    def tail(self) -> str:
        """The end of its output; empty for rank 0, whose output is the console."""


@dataclass
class Rank:
    """A rank process of this machine. The output of rank 0 is the console, that of the others a file."""

    number: int
    process: subprocess.Popen[bytes]
    output: Path | None
    folder: Path

    @property
    def code(self) -> int | None:
        """See AnyRank."""
        return self.process.poll()

    def kill(self, number: int) -> None:
        """Send a signal to the process; SIGKILL to all of its group, so that no child of a rank outlives it."""
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        elif self.process.poll() is None:
            self.process.send_signal(number)

    def note(self) -> dict[str, Any] | None:
        """See AnyRank."""
        return read_json(_error_path(self.folder, self.number))

    def tail(self) -> str:
        """See AnyRank."""
        return "" if self.output is None else "\n".join(self.output.read_text(errors="replace").splitlines()[-TAIL:])

    def end(self) -> None:
        """Kill it and its children, and wait."""
        self.kill(signal.SIGKILL)
        self.process.wait()


@dataclass
class RemoteRank:
    """A rank of another node, as that node reports it."""

    number: int
    node: Node

    @property
    def code(self) -> int | None:
        """See AnyRank. A rank whose node is gone has failed."""
        return self.node.codes.get(self.number, 1 if self.node.gone else None)

    def kill(self, number: int) -> None:
        """Signals go to all ranks of a node at once (Node.signals)."""

    def note(self) -> dict[str, Any] | None:
        """See AnyRank."""
        if self.number not in self.node.codes:
            return {"rank": self.number, "time": time.time(), "reason": f"its node {self.node.name} is gone", "traceback": "", "expected": True}
        return self.node.notes.get(self.number)

    def tail(self) -> str:
        """See AnyRank."""
        return self.node.tails.get(self.number, "")


def free_port(address: str = LOOPBACK) -> int:
    """A TCP port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def run_ranks(
    command: Sequence[str],
    world: int,
    folder: Path,
    stop: StopRequest,
    *,
    nodes: int = 1,
    meeting: Meeting | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, Failure | None]:
    """Run `command` as `world` ranks and wait. Returns the exit code (0, 1, 75 or 76) and, for 1, what went wrong with the rank that failed first.

    command: a program and its arguments; it finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.
    folder: gets the output of ranks 1, 2, … as rank_N.log and errors as rank_N.json (`write_failure`). Signals that `stop` receives are passed on;
    when one rank fails the others are killed within seconds. nodes: machines that the ranks are spread over in equal parts, this one first. meeting:
    brings the others, and those that serve; they are sent home at the end. variables: added to the environment of all ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    ranks: list[Rank | RemoteRank] = []
    others: Sequence[Node] = ()

    def forward(number: int) -> None:
        for rank in ranks:
            rank.kill(number)
        for node in others:
            node.signals.append(number)

    stop.forward = forward
    try:
        if meeting is not None:
            others = meeting.gather(lambda: stop.requested)
            if stop.requested:
                return PREEMPTED_CODE, None
        group = _group(world, nodes, meeting, others, folder, variables or {})
        for number in range(group.per_node):
            ranks.append(spawn(command, number, group, folder))
        for node in others[: nodes - 1]:
            first = node.number * group.per_node
            node.channel.send(do="train", command=list(command), group=dataclasses.asdict(group), first=first, folder=str(folder))
            ranks += [RemoteRank(first + number, node) for number in range(group.per_node)]
        for number, node in enumerate(others[nodes - 1 :]):
            node.channel.send(do="serve", order=str(folder / f"server_{number}.json"))
        if stop.requested:
            forward(stop.signal or signal.SIGTERM)
        return _watch(ranks, others, stop)
    finally:
        stop.forward = None
        for rank in ranks:
            if isinstance(rank, Rank):
                rank.end()
        if meeting is not None:
            meeting.close()


def _group(world: int, nodes: int, meeting: Meeting | None, others: Sequence[Node], orders: Path, variables: Mapping[str, str]) -> Group:
    address = meeting.address if meeting is not None and nodes > 1 else LOOPBACK
    serving = {}
    if meeting is not None and len(others) >= nodes:
        serving = ServerNodes(tuple((node.address, node.port) for node in others[nodes - 1 :]), meeting.address, orders).environment()
    return Group(world, world // nodes, address, free_port(address), {**variables, **serving})


def spawn(command: Sequence[str], number: int, group: Group, folder: Path) -> Rank:
    """Start one rank on this machine."""
    environment = {**os.environ, **group.environment(number)}
    output = None if number == 0 else folder / f"rank_{number}.log"
    # Sessions of their own: a Ctrl-C in the terminal reaches the parent alone, which passes it on once.
    if output is None:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    else:
        with open(output, "wb") as file:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    return Rank(number, process, output, folder)


def _watch(ranks: Sequence[AnyRank], others: Sequence[Node], stop: StopRequest) -> tuple[int, Failure | None]:
    """Wait until all have ended, or until one has failed and the others had a moment to say why they fail too."""
    deadline = None
    while any(rank.code is None for rank in ranks) and (deadline is None or time.monotonic() < deadline):
        for node in others:
            node.look()
        if deadline is None and (any(rank.code not in CLEAN for rank in ranks) or any(node.gone for node in others)):
            deadline = time.monotonic() + GRACE
        time.sleep(POLL)
    failed = [rank for rank in ranks if rank.code not in CLEAN]
    if failed and stop.signal is not None and all(rank.code == -stop.signal for rank in failed):
        return PREEMPTED_CODE, None  # passed on to ranks that were just starting and had no handler for it yet
    if failed:
        return 1, _first_failure(failed)
    if any(rank.code is None for rank in ranks):
        return 1, Failure(f"the node {next(node.name for node in others if node.gone)} is gone", "", expected=True)
    return max(code for rank in ranks if (code := rank.code) is not None), None


def _first_failure(failed: Sequence[AnyRank]) -> Failure:
    """The failure that caused the others: a rank killed by a signal says nothing, so it comes before those that complain about it; else the earliest."""
    notes = {rank.number: note for rank in failed if (note := rank.note()) is not None}
    silent = [rank for rank in failed if rank.number not in notes]
    if silent:
        rank, code = silent[0], silent[0].code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return Failure(f"rank {rank.number} {how}{hint}", rank.tail(), expected=False)
    first: dict[str, Any] = min(notes.values(), key=lambda note: note["time"])
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


def worker_command(folder: Path) -> list[str]:
    """The program that runs one rank of the run in a folder."""
    return [sys.executable, "-m", "rlexp.launch.worker", str(folder)]
