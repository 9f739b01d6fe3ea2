"""Ranks that somebody else started (torchrun, accelerate launch, srun): they must agree on one run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from rlexp.config.errors import UserError
from rlexp.launch.folder import RunFolder

WAIT = timedelta(seconds=120)
_stores: list[Any] = []
"""Kept alive: without torchrun's agent, rank 0 serves the store from this object"""


def external_rank() -> tuple[int, int] | None:
    """(rank, world) from the environment, None when this process was started alone."""
    if "RANK" not in os.environ:
        return None
    return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))


def refuse_ranks() -> None:
    """Raise UserError in a rank that somebody else started: each would start the whole sweep."""
    external = external_rank()
    if external is not None:
        rank, world = external
        raise UserError(
            f"-m starts a sweep, and this process is rank {rank} of {world} that torchrun or accelerate started (RANK is set): leave out -m, "
            "or start the sweep by python and let it start the ranks, strategy=ddp cluster.processes_per_node=2"
        )


def share_folder(rank: int, open_one: Callable[[], RunFolder]) -> RunFolder | None:
    """The run folder, found or made by rank 0 and told to the others through the store that torch.distributed will use anyway.

    Raises what `open_one` raises on rank 0, which tells it to the user; the others then get None and have nothing to do.
    """
    from torch.distributed import rendezvous  # the only use of torch in this room

    store, _, _ = next(iter(rendezvous("env://", timeout=WAIT)))
    _stores.append(store)
    # The store of torchrun's agent outlives a restart of the ranks.
    key = f"rlexp/folder/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if rank != 0:
        word = json.loads(store.get(key))
        return RunFolder(Path(word["path"]), finished=word["finished"]) if word else None
    try:
        folder = open_one()
    except BaseException:
        store.set(key, "null")
        raise
    store.set(key, json.dumps({"path": str(folder.path), "finished": folder.finished}))
    return folder
