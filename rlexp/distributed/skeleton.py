"""Models without numbers, for ranks whose weights come from rank 0 a layer at a time (strategy=fsdp2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Place:
    """A parameter or buffer of a network. first: number of the first place with the same tensor, which is another one where weights are tied."""

    name: str
    first: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool


def places(module: nn.Module) -> list[Place]:
    """All of them, in an order that depends on the modules alone."""
    found: list[Place] = []
    firsts: dict[int, int] = {}
    for name, table, key in _tensors(module):
        tensor = table[key]
        first = firsts.setdefault(id(tensor), len(found))
        found.append(Place(name, first, tuple(tensor.shape), tensor.dtype, tensor.requires_grad))
    return found


def conform(module: nn.Module, wanted: Sequence[Place]) -> None:
    """Make a skeleton have the shapes, dtypes and ties that rank 0 has: those of weights that were read can be others than the config says.

    Raises RuntimeError when the modules themselves differ.
    """
    own = list(_tensors(module))
    if [name for name, _, _ in own] != [place.name for place in wanted]:
        raise RuntimeError("rank 0 has a network of other parts than this rank: do all ranks see the same files and versions?")
    made: list[Tensor] = []
    for (_, table, key), place in zip(own, wanted, strict=True):
        if place.first < len(made):
            made.append(made[place.first])
        else:
            empty = torch.empty(place.shape, dtype=place.dtype, device=META)
            made.append(nn.Parameter(empty, requires_grad=place.trained) if isinstance(table[key], nn.Parameter) else empty)
        made[-1].__dict__.update(table[key].__dict__)
        table[key] = made[-1]


def _tensors(module: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(whole name, the dict that holds it, its key there) of each parameter and buffer, tied ones at each of their places."""
    for path, part in module.named_modules():
        for table in (part._parameters, part._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield f"{path}.{key}", table, key


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
    for _, table, key in _tensors(module):
        tensor = table[key]
        if not is_sharded(tensor):
            if id(tensor) not in done:
                done[id(tensor)] = (tensor, _filled(tensor, device))
            table[key] = done[id(tensor)][1]


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
