"""Messages between the nodes of a job: JSON objects, a line each, over one TCP connection. Its end is the news that the other side is gone."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

SEND = 30.0
"""Seconds a message may take to leave; a node that reads nothing for so long is as good as gone"""
LONGEST = 1 << 24
"""Bytes of the longest message"""


class Channel:
    """One end of a connection. Reading never waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self.closed = False
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that lost its power says nothing
        if sys.platform == "linux":
            for name, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
                connection.setsockopt(socket.IPPROTO_TCP, name, value)

    def send(self, **message: Any) -> None:
        """Send one message; nothing happens when the other side is gone, which `closed` then says."""
        if self.closed:
            return
        try:
            self._socket.settimeout(SEND)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.closed = True
        else:
            self._socket.setblocking(False)

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come, in order."""
        while not self.closed:
            try:
                data = self._socket.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            self._rest += data
            self.closed = not data or len(self._rest) > LONGEST
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        self.closed = True
        self._socket.close()
