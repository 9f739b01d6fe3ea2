"""Nodes of a job that wait to serve, as its ranks learn of them: from their environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PLACES, _TRAINER, _ORDERS = "RLEXP_SERVER_NODES", "RLEXP_FIRST_NODE", "RLEXP_SERVER_ORDERS"


@dataclass(frozen=True)
class ServerNodes:
    """places: address and a free port of each. trainer: address of the first node. orders: folder where node N looks for server_N.json."""

    places: tuple[tuple[str, int], ...]
    trainer: str
    orders: Path

    def order(self, number: int) -> Path:
        """The file that orders server `number`."""
        return self.orders / f"server_{number}.json"

    def environment(self) -> dict[str, str]:
        """For ranks."""
        places = ",".join(f"{address}:{port}" for address, port in self.places)
        return {_PLACES: places, _TRAINER: self.trainer, _ORDERS: str(self.orders)}

    @classmethod
    def given(cls) -> ServerNodes | None:
        """What this process's environment says; None when no node waits."""
        if _PLACES not in os.environ:
            return None
        pairs = (place.rpartition(":") for place in os.environ[_PLACES].split(","))
        return cls(tuple((address, int(port)) for address, _, port in pairs), os.environ[_TRAINER], Path(os.environ[_ORDERS]))
