"""Where the nodes of a job meet: the first listens on its own address, the others connect and do what it says (rlexp.launch.follower)."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlexp.config.errors import UserError
from rlexp.launch.files import write_json
from rlexp.launch.wire import Channel

PATIENCE = 300.0
"""Seconds the nodes of a job have to appear: their Python may have to come over a slow network"""
GOODBYE = 20.0
"""Seconds a node gets to end its processes at the end"""
POLL = 0.1
FILE = "meeting.json"

_current: Meeting | None = None


class Node:
    """Another node, as the first one sees it. It reports the exit codes of its ranks, with what they left to say."""

    def __init__(self, number: int, name: str, address: str, port: int, channel: Channel) -> None:
        self.number, self.name, self.address, self.port = number, name, address, port
        self.channel = channel
        self.codes: dict[int, int] = {}
        self.notes: dict[int, dict[str, Any]] = {}
        self.tails: dict[int, str] = {}
        self.signals: list[int] = []
        """to be passed on at the next look: a signal handler must not write into the middle of a message"""
        self.failed = ""
        """what a node without ranks reports when its server ended"""

    def look(self) -> None:
        """Pass signals on and take in what has come."""
        while self.signals:
            self.channel.send(do="signal", number=self.signals.pop(0))
        for message in self.channel.receive():
            self.codes.update({int(rank): code for rank, code in message.get("codes", {}).items()})
            self.notes.update({int(rank): note for rank, note in message.get("notes", {}).items()})
            self.tails.update({int(rank): tail for rank, tail in message.get("tails", {}).items()})
            self.failed = message.get("failed", self.failed)

    @property
    def gone(self) -> bool:
        """Whether the connection broke."""
        return self.channel.closed


class Meeting:
    """The first node's side. folder: a folder of this life of the job that all nodes see. count: how many others there are."""

    def __init__(self, folder: Path, address: str, count: int) -> None:
        global _current
        self.folder, self.address, self.count = folder, address, count
        self.nodes: list[Node] = []
        self._token = secrets.token_hex(16)
        self._listener = socket.create_server((address, 0))
        self._listener.setblocking(False)
        self._unknown: list[Channel] = []
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # who reads the token is one of us
        write_json(folder / FILE, {"address": address, "port": self._listener.getsockname()[1], "token": self._token})
        _current = self

    def gather(self, stopped: Callable[[], bool] = lambda: False, patience: float = PATIENCE) -> Sequence[Node]:
        """All other nodes, in their order. Raises UserError when they do not appear in time; a stop request ends the wait with those that are there."""
        deadline = time.monotonic() + patience
        while len(self.nodes) < self.count and not stopped():
            self._greet()
            if time.monotonic() > deadline:
                missing = sorted(set(range(1, self.count + 1)) - {node.number for node in self.nodes})
                raise UserError(
                    f"nodes {', '.join(map(str, missing))} of the job did not report within {patience:g} s at {self.address}: see {self.folder.parent}"
                )
            time.sleep(POLL)
        self.nodes.sort(key=lambda node: node.number)
        return self.nodes

    def _greet(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._unknown.append(Channel(self._listener.accept()[0]))
        for channel in list(self._unknown):
            try:
                messages = channel.receive()
            except ValueError:  # not one of us
                messages = [{}]
            if messages or channel.closed:
                self._unknown.remove(channel)
                hello = messages[0] if messages and isinstance(messages[0], dict) else {}
                if hmac.compare_digest(str(hello.get("token", "")), self._token):
                    self.nodes.append(Node(int(hello["node"]), str(hello["name"]), str(hello["address"]), int(hello["port"]), channel))
                else:
                    channel.close()

    def close(self) -> None:
        """Send all nodes home and wait until they have ended their processes. A second call does nothing."""
        global _current
        if self._listener.fileno() < 0:
            return
        write_json(self.folder / FILE, {"over": True})  # for those that come now
        self._greet()
        self._listener.close()
        channels = [node.channel for node in self.nodes] + self._unknown
        for channel in channels:
            channel.send(do="end")
        deadline = time.monotonic() + GOODBYE
        while time.monotonic() < deadline and not all(channel.closed for channel in channels):
            for channel in channels:
                channel.receive()
            time.sleep(POLL)
        for channel in channels:
            channel.close()
        _current = None


def meeting_of_this_job() -> Meeting:
    """The meeting that this process, the first of its job, has opened."""
    assert _current is not None, "a job of several nodes opens its meeting first"
    return _current
