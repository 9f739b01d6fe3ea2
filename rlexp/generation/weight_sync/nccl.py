"""Weights to servers on other GPUs through vLLM's own nccl engine: trainer and workers form a group, and each bucket is broadcast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server.control import Control
from rlexp.generation.weight_sync.base import Named
from rlexp.generation.weight_sync.shared_memory import buckets

Group = Any
"""vllm's PyNcclCommunicator"""


class Nccl:
    """Rank 0 of the trainer and all workers of all servers as one nccl group.

    join, broadcast: vLLM's functions for the trainer's end; the wire format is vLLM's packed one.
    """

    def __init__(
        self,
        control: Control,
        limit: int,
        host: str,
        port: int,
        join: Callable[[str, int, int], Group] | None = None,
        broadcast: Callable[[list[Named], Group, int], None] | None = None,
    ) -> None:
        """host, port: where the group meets, on the trainer's machine. limit: bytes of a bucket."""
        self.control, self.limit, self.host, self.port = control, limit, host, port
        self._join, self._broadcast = join or _join, broadcast or _broadcast
        self._group: Group = None

    def send(self, tensors: Iterator[Named]) -> int:
        """Send them all: the servers are told what comes while it is broadcast."""
        if self._group is None:
            self._group = self._meet()
        sent = 0
        for bucket in buckets(tensors, self.limit):
            self._beside("update_weights", functools.partial(_description, bucket), functools.partial(self._broadcast, bucket, self._group, self.limit))
            sent += sum(tensor.numel() * tensor.element_size() for _, tensor in bucket)
        return sent

    def forget(self) -> None:
        """A group that lost a member cannot be used: the next sync makes a new one."""
        self.close()

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.destroy()
            self._group = None

    def _meet(self) -> Group:
        sizes = [answer["world_size"] for answer in self.control.get("get_world_size")]
        world = 1 + sum(sizes)
        offset = {url: 1 + sum(sizes[:place]) for place, url in enumerate(self.control.urls)}

        def info(url: str) -> dict[str, Any]:
            wire = {"packed": True, "packed_buffer_size_bytes": self.limit, "packed_num_buffers": 2}
            return {"init_info": {"master_address": self.host, "master_port": self.port, "rank_offset": offset[url], "world_size": world, **wire}}

        return self._beside("init_weight_transfer_engine", info, lambda: self._join(self.host, self.port, world))

    def _beside(self, path: str, body: Callable[[str], dict[str, Any]], mine: Callable[[], Any]) -> Any:
        """Tell all servers and do the trainer's part meanwhile; both meet inside nccl. Returns the trainer's result."""
        with ThreadPoolExecutor(1) as beside:
            theirs = beside.submit(self.control.each, lambda url: self.control.call(url, "POST", path, body(url)))
            result = mine()
            theirs.result()
        return result


def _description(bucket: list[Named], url: str) -> dict[str, Any]:
    """What a server is told of a bucket; the same for each."""
    return {
        "update_info": {
            "names": [name for name, _ in bucket],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
        }
    }


def _join(host: str, port: int, world: int) -> Group:
    try:
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group
    except ImportError as error:
        raise UserError(
            "generation.weight_transfer=nccl needs vLLM beside the trainer too (pip install 'rlexp[vllm]'), or set weight_transfer=shared_memory or folder"
        ) from error
    return stateless_init_process_group(host, port, 0, world, torch.cuda.current_device())


def _broadcast(bucket: list[Named], group: Group, limit: int) -> None:
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

    packed_nccl_broadcast_producer(iterator=iter(bucket), group=group, src=0, post_iter_func=lambda item: item[1], buffer_size_bytes=limit, num_buffers=2)
    torch.cuda.current_stream().synchronize()
