"""Models without numbers, for ranks whose weights come from rank 0 a layer at a time (strategy=fsdp2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlexp.distributed.shards import is_sharded

META = torch.device("meta")
_wanted: ContextVar[bool] = ContextVar("skeleton", default=False)


@contextlib.contextmanager
def skeletons() -> Iterator[None]:
    """Inside, `is_wanted` says that models are to be made on the meta device. Who reads weights asks it; another kind of model may have them all the same."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_wanted() -> bool:
    """Whether a model is to be made without its weights."""
    return _wanted.get()


def is_skeleton(module: nn.Module) -> bool:
    """Whether it has no numbers."""
    first = next(module.parameters(), None)
    return first is not None and first.device == META


def any_skeleton(module: nn.Module) -> bool:
    """Whether a rank has a skeleton of this module. An exchange: every rank must call it."""
    found = torch.tensor(float(is_skeleton(module)))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def put(module: nn.Module, device: torch.device) -> None:
    """Move a model; one without numbers stays where it is."""
    if not is_skeleton(module):
        module.to(device)


@torch.no_grad()
def fill(module: nn.Module, device: torch.device) -> None:
    """Give all tensors of a module that are not cut yet the numbers that rank 0 has. An exchange for each. Tied weights stay tied.

    device: where the numbers go.
    """
    done: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor itself, so that its id stays its own
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and not is_sharded(tensor):
                    if id(tensor) not in done:
                        done[id(tensor)] = (tensor, _filled(tensor, device))
                    table[name] = done[id(tensor)][1]


def _filled(tensor: Any, device: torch.device) -> Tensor:
    own = dist.get_rank() == 0
    values = tensor.detach().to(device).contiguous() if own else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if values.numel():
        dist.broadcast(values, 0)
    if not isinstance(tensor, nn.Parameter):
        return values
    made = nn.Parameter(values, requires_grad=tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made
