"""The CPU worker of an engine that ranks share, loaded by vLLM by its name (`worker_cls`)."""

from __future__ import annotations

import uuid
from pathlib import Path

import torch.distributed as dist
from vllm.v1.worker.cpu_worker import CPUWorker

SEGMENTS = Path("/dev/shm")


class SharedWorker(CPUWorker):
    """vLLM's, with shared memory of its own that nobody's end can leave behind.

    vLLM names the memory through which ranks talk after the address that its worker is given. Ranks that somebody else started all have the same one,
    "env://": then the second run on a machine fails with "create shm in SHMManager failed. errno: 17", beside another or after one that was killed.
    """

    def init_device(self) -> None:
        """Start with a name that no other engine has. Every rank of the trainer calls this at the same time."""
        name = [uuid.uuid4().hex]
        dist.broadcast_object_list(name, src=0)
        self.distributed_init_method += f":{name[0]}"  # only its end is read: the process group is there already
        try:
            super().init_device()
            dist.barrier()  # all ranks have opened what others made
        finally:
            for segment in SEGMENTS.glob(f"*{name[0]}*"):  # the memory lives as long as a process that has it open
                segment.unlink(missing_ok=True)
