"""The server's side of our weight transfer: an engine for vLLM's weight-transfer protocol that works on any device.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). `--weight-transfer-config '{"backend": "rlexp"}'` then
chooses the engine, which reads buckets of packed tensors from a file: one mapped into memory on the same machine (`shared_memory.py`), or a new
one for each bucket in a folder that both machines see.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlexp.generation.vllm_server.command import ENGINE

if TYPE_CHECKING:
    from torch import Tensor


def register() -> None:
    """Make the engine known to vLLM. May be called several times in a process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if ENGINE not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(ENGINE, "rlexp.generation.weight_sync.engine", "BucketEngine")


@dataclass
class Bucket:
    """Where the tensors of one call stand. Offsets in bytes."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    offsets: list[int]
    path: str | None = None
    """a file of its own; None: the one named at the start"""


@dataclass
class Mapped:
    """The file that buckets are read from, as the trainer named it."""

    path: str | None = None
    size: int = 0
    memory: Any = field(default=None, repr=False)

    def open(self) -> None:
        """Map the file. The trainer removes its name right after, so that nothing is left behind whoever dies."""
        self.close()
        if self.path is None:
            return
        handle = os.open(self.path, os.O_RDWR)  # torch warns of memory it cannot write
        try:
            self.memory = mmap.mmap(handle, self.size)
        finally:
            os.close(handle)

    def close(self) -> None:
        """Let go of the file."""
        self.memory = None


def unpack(bucket: Bucket, memory: Any) -> list[tuple[str, Tensor]]:
    """The tensors of a bucket, copied out of the memory, which the trainer fills again with the next one."""
    import torch

    found = []
    for name, dtype, shape, offset in zip(bucket.names, bucket.dtypes, bucket.shapes, bucket.offsets, strict=True):
        count = math.prod(shape)
        kind = getattr(torch, dtype)
        flat = torch.frombuffer(memory, dtype=kind, count=count, offset=offset).clone() if count else torch.empty(0, dtype=kind)
        found.append((name, flat.view(shape)))
    return found


class WorkerView:
    """Mixed into vLLM's worker (--worker-extension-cls): what the server says of its model when it is asked by /collective_rpc."""

    def rlexp_fingerprints(self) -> dict[str, tuple[float, float]]:
        """See rlexp.generation.vllm.loading.fingerprints."""
        from vllm.config import set_current_vllm_config

        from rlexp.generation.vllm.loading import fingerprints

        worker: Any = self
        with set_current_vllm_config(worker.vllm_config):
            return fingerprints(worker.model_runner.get_model())

    def rlexp_model(self) -> dict[str, int]:
        """The sizes in the model's config."""
        worker: Any = self
        config = worker.model_config.hf_text_config.to_dict()
        return {name: value for name, value in config.items() if isinstance(value, int) and not isinstance(value, bool)}
