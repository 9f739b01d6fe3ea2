"""A server on another node of the run's job: ordered by a file that the node waits for, ended by the node when the run ends (rlexp.launch.serving)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlexp.generation.vllm_server.process import LaunchedServer

ENDED = ".ended"
"""Suffix of the file beside the order in which the node says how the server ended"""


class NodeServer(LaunchedServer):
    """order: the file. host, port: of the node, where the server listens. Otherwise as ServerProcess."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, host: str, port: int, log: Path, order: Path) -> None:
        super().__init__(host=host, port=port, log=log)
        self._order = order
        half = order.with_suffix(".half")
        half.write_text(json.dumps({"command": list(command), "environment": dict(environment), "host": host, "port": port, "log": str(log)}))
        half.rename(order)

    @property
    def code(self) -> int | None:
        """See LaunchedServer."""
        return ended_code(self._order)

    def stop(self, now: bool = False) -> None:
        """Its node ends it, with all of its processes, when the run ends."""


def ended_code(order: Path) -> int | None:
    """Exit code of the server that an order was for, as its node reports it; None while it lives. Any rank may ask."""
    ended = order.with_suffix(ENDED)
    return int(ended.read_text()) if appeared(ended) else None


def appeared(path: Path) -> bool:
    """Whether a file that another machine writes is there. Listing its folder asks the server of a network disk; the name alone may be looked up in a cache."""
    return path.name in os.listdir(path.parent)
