"""A node of a job that is not its first: it starts the ranks or the server it is told to, reports how ranks end, and goes when the first node says so."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlexp.launch.files import read_json
from rlexp.launch.hosts import own_address
from rlexp.launch.meeting import FILE, PATIENCE, POLL
from rlexp.launch.ranks import CLEAN, Group, Rank, free_port, spawn
from rlexp.launch.serving import Serving
from rlexp.launch.signals import StopRequest, handling
from rlexp.launch.wire import Channel

CONNECT = 10.0
"""Seconds one try to reach the first node may take"""


def follow(folder: Path, number: int) -> int:
    """Take part in a job as its node `number`. Returns the exit code: 0 when the first node ended the job, 1 when it is gone or never came.

    folder: where the nodes meet (rlexp.launch.meeting.Meeting).
    """
    with handling() as stop:
        address = own_address()
        port = free_port(address)
        channel = _connect(folder, lambda: stop.requested)
        if channel is None:
            return 0
        word = read_json(folder / FILE)
        channel.send(token=word.get("token", ""), node=number, name=_name(), address=address, port=port)
        return _Follower(channel, stop).run()


def _name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _connect(folder: Path, stopped: Callable[[], bool]) -> Channel | None:
    """The connection to the first node; None when the job is over already or was asked to stop. Raises TimeoutError when it never comes."""
    deadline = time.monotonic() + PATIENCE
    while not stopped():
        word = read_json(folder / FILE) if folder.is_dir() and FILE in os.listdir(folder) else None  # listing a folder asks the server of a network disk anew
        if word is not None and word.get("over"):
            return None
        if word is not None:
            try:
                return Channel(socket.create_connection((word["address"], word["port"]), timeout=CONNECT))
            except OSError as error:
                problem = str(error)
        else:
            problem = "it left no word"
        if time.monotonic() > deadline:
            raise TimeoutError(f"the first node of the job could not be reached within {PATIENCE:g} s ({problem}); see {folder}")
        time.sleep(POLL)
    return None


class _Follower:
    def __init__(self, channel: Channel, stop: StopRequest) -> None:
        self._channel, self._stop = channel, stop
        self._ranks: list[Rank] = []
        self._serving: Serving | None = None
        self._told: set[int] = set()
        self._over = False

    def run(self) -> int:
        """Until the first node says it is over, or is gone. No process is left then."""
        self._stop.forward = self._signal
        try:
            while not self._over and not self._channel.closed:
                for message in self._channel.receive():
                    self._obey(message)
                self._report()
                if self._serving is not None:
                    self._serving.look()
                time.sleep(POLL)
            return 0 if self._over else 1
        finally:
            self._stop.forward = None
            for rank in self._ranks:
                rank.end()
            if self._serving is not None:
                self._serving.end()
            self._channel.close()

    def _obey(self, message: dict[str, Any]) -> None:
        if message["do"] == "train":
            group, folder = Group(**message["group"]), Path(message["folder"])
            self._ranks = [spawn(message["command"], message["first"] + number, group, folder) for number in range(group.per_node)]
            if self._stop.signal is not None:
                self._signal(self._stop.signal)
        elif message["do"] == "serve":
            self._serving = Serving(Path(message["order"]))
        elif message["do"] == "signal":
            self._signal(message["number"])
        elif message["do"] == "end":
            self._over = True

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            rank.kill(number)

    def _report(self) -> None:
        """Tell about ranks that have ended."""
        ended = {rank.number: rank for rank in self._ranks if rank.number not in self._told and rank.code is not None}
        if not ended:
            return
        self._told |= ended.keys()
        failed = {number: rank for number, rank in ended.items() if rank.code not in CLEAN}
        self._channel.send(
            codes={number: rank.code for number, rank in ended.items()},
            notes={number: note for number, rank in failed.items() if (note := rank.note()) is not None},
            tails={number: rank.tail() for number, rank in failed.items()},
        )
