"""What ranks exchange outside the gradient: whole objects in rank order, and flat arrays."""

from __future__ import annotations

import datetime
import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlexp.distributed.rendezvous import own_store


class Collectives:
    """One process: every exchange returns what was given."""

    rank = 0
    world = 1

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order, on every rank."""
        return [value]

    def sum_array(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over ranks, float64."""
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""

    def close(self) -> None:
        """Leave the process group."""


class ProcessGroup(Collectives):
    """Several processes, by torch.distributed. Objects and metrics travel over gloo, gradients over nccl on GPUs.

    timeout: seconds a collective may wait; must exceed the longest deadline of a rollout.
    """

    def __init__(self, timeout: float) -> None:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store = own_store(timeout)
        named = {} if store is None else {"store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout), **named)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order, on every rank."""
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def sum_array(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over ranks, float64."""
        tensor = torch.from_numpy(np.array(values, dtype=np.float64))
        dist.all_reduce(tensor)
        return tensor.numpy()

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather_objects(None)

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def local_rank() -> int:
    """Index of this process on its machine, from the launcher's environment."""
    return int(os.environ.get("LOCAL_RANK", "0"))
