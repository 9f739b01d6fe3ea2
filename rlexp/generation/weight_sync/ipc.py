"""Weights to a server on the same GPU through vLLM's own ipc engine: it is handed the trainer's memory and copies out of it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlexp.generation.vllm_server.control import Control
from rlexp.generation.weight_sync.base import Named
from rlexp.generation.weight_sync.shared_memory import buckets


class Ipc:
    """Handles of GPU memory, a bucket of tensors in each call. The server needs VLLM_ALLOW_INSECURE_SERIALIZATION=1: handles travel pickled.

    handle: (GPU uuid, handle) of a tensor, torch's own by default.
    """

    def __init__(self, control: Control, limit: int, handle: Callable[[Tensor], tuple[str, Any]] | None = None) -> None:
        self.control, self.limit, self.handle = control, limit, handle or _handle
        self._ready = False

    def send(self, tensors: Iterator[Named]) -> int:
        """Send them all. A layer is loaded when its last weight is there, so memory stays while the next bucket is read, and until the update ends."""
        if not self._ready:
            self.control.everywhere("init_weight_transfer_engine", {"init_info": {"packed": False}})
            self._ready = True
        sent = 0
        held: list[list[Named]] = []
        for bucket in buckets(tensors, self.limit):
            kept = [(name, tensor.contiguous()) for name, tensor in bucket]
            handles = [dict([self.handle(tensor)]) for _, tensor in kept]
            body = {
                "names": [name for name, _ in kept],
                "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in kept],
                "shapes": [list(tensor.shape) for _, tensor in kept],
                "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
            }
            self.control.everywhere("update_weights", {"update_info": body})
            held = [held[-1], kept] if held else [kept]
            sent += sum(tensor.numel() * tensor.element_size() for _, tensor in kept)
        self._last = held
        return sent

    def forget(self) -> None:
        """The servers are new ones."""
        self.close()

    def close(self) -> None:
        """Let go of the tensors of the last update."""
        self._ready, self._last = False, []


def _handle(tensor: Tensor) -> tuple[str, Any]:
    from torch.multiprocessing.reductions import reduce_tensor

    torch.cuda.current_stream().synchronize()
    return str(torch.cuda.get_device_properties(tensor.device).uuid), reduce_tensor(tensor)[1]
