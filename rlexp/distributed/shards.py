"""Tensors of which each process holds some rows (DTensor, cut along the first axis), and how they meet whole ones."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlexp.distributed.zero import assign_partitioned, gathered, is_partitioned


class Rows(Protocol):
    """A whole tensor that is read in parts, e.g. out of a checkpoint."""

    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Tensor:
        """Rows start to stop; the tensor itself if it has no axis."""
        ...


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds some rows only."""
    return isinstance(tensor, DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """The rows of this process, sharing memory with the tensor; a whole tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All rows, without gradient. An exchange for a sharded tensor: every rank must call it, in the same order."""
    if is_partitioned(tensor):
        return gathered(tensor)
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def extent(tensor: Tensor) -> tuple[int, int]:
    """First row of this process and the one behind its last, as torch.chunk cuts them: the last ranks may hold none."""
    if tensor.dim() == 0:
        return 0, 0
    if not isinstance(tensor, DTensor):
        return 0, tensor.shape[0]
    rank, world = tensor.device_mesh.get_local_rank(), tensor.device_mesh.size()
    each = -(-tensor.shape[0] // world)
    return min(rank * each, tensor.shape[0]), min((rank + 1) * each, tensor.shape[0])


def part_of(value: Tensor | Rows, like: Tensor) -> Tensor:
    """The rows of `value` that this process holds of `like`. value: sharded as `like` is, whole, or to be read."""
    start, stop = extent(like)
    if not isinstance(value, Tensor):
        return value.read(start, stop)
    if is_partitioned(value):
        return gathered(value)
    if isinstance(value, DTensor):
        return value.to_local() if isinstance(like, DTensor) else value.full_tensor()
    return value[start:stop] if value.dim() else value


@torch.no_grad()
def assign(target: Tensor, value: Tensor | Rows) -> None:
    """Give a tensor, sharded or whole, the values of another of the same shape."""
    if is_partitioned(target):
        assign_partitioned(target, part_of(value, torch.empty(shape_of(target), device="meta")))
    else:
        own_part(target.detach()).copy_(part_of(value, target))


@torch.no_grad()
def move(target: Tensor, towards: Tensor, rate: float) -> None:
    """target becomes (1 - rate) * target + rate * towards, each sharded or whole. An exchange where ZeRO-3 holds one of them."""
    if is_partitioned(target):
        before = gathered(target)
        assign_partitioned(target, before.lerp_(whole(towards).to(before.dtype), rate))
    else:
        own_part(target.detach()).lerp_(part_of(towards, target), rate)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Of the whole."""
    shape: tuple[int, ...] = tuple(tensor.ds_shape) if is_partitioned(tensor) else tuple(tensor.shape)  # type: ignore[attr-defined]
    return shape


def shaped_like(value: Tensor | Rows, like: Tensor) -> Tensor:
    """A tensor with these values, sharded as `like` is, in its own dtype."""
    part = part_of(value, like)
    if not isinstance(like, DTensor):
        return part
    part = part.to(own_part(like).device)
    return DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride(), run_check=False)
