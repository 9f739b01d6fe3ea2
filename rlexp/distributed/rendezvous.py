"""Where the ranks that rlexp starts find each other: a store that listens on their address alone. torch's own listens on every network of the machine."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

LAUNCHED = "RLEXP_LAUNCHED"
"""Environment of ranks that rlexp started; others bring a store along"""


def own_store(timeout: float) -> Any:
    """The store at MASTER_ADDR and MASTER_PORT, which rank 0 serves; None for ranks that somebody else started (torchrun, accelerate)."""
    if LAUNCHED not in os.environ:
        return None
    from torch.distributed import TCPStore

    address, port, world = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    patience = timedelta(seconds=timeout)
    if os.environ["RANK"] != "0":
        return TCPStore(address, port, world, False, patience)
    listener = socket.create_server((address, port), backlog=max(world, 128))
    return TCPStore(address, port, world, True, patience, wait_for_workers=False, master_listen_fd=listener.detach())
