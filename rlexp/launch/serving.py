"""What a node with a server does: it waits for the order, starts the server, says when it ended, and ends it when the run ends."""

from __future__ import annotations

import json
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server.node import ENDED, appeared
from rlexp.generation.vllm_server.process import ServerProcess
from rlexp.launch.files import write_text


class Serving:
    """order: the file that rank 0 writes when it has a model (rlexp.generation.vllm_server.node)."""

    def __init__(self, order: Path) -> None:
        self._order, self._ended = order, order.with_suffix(ENDED)
        self._process: ServerProcess | None = None
        self._told = False

    def look(self) -> None:
        """Start the server once it is ordered; tell once it has ended."""
        if self._process is None and not self._told and appeared(self._order):
            order = json.loads(self._order.read_text())
            try:
                self._process = ServerProcess(order["command"], order["environment"], host=order["host"], port=order["port"], log=Path(order["log"]))
            except UserError as error:  # the port was taken meanwhile
                Path(order["log"]).write_text(f"Error: {error}\n")
                self._tell(1)
        if self._process is not None and self._process.code is not None:
            self._tell(self._process.code)

    def end(self) -> None:
        """End the server and every process of its group."""
        if self._process is not None:
            self._process.stop()

    def _tell(self, code: int) -> None:
        if not self._told:
            self._told = True
            write_text(self._ended, f"{code}\n")
