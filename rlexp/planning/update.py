"""Memory of one forward and backward, by running them on fake tensors: the network's own code, every allocation counted, no numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException, unset_fake_temporarily

from rlexp.batching.packer import MicroBatch
from rlexp.batching.row import Row
from rlexp.batching.terms import Terms
from rlexp.config.errors import UserError
from rlexp.models.attention.interface import arguments
from rlexp.models.columns import Column
from rlexp.models.network import Network, RowTensors, row_tensors
from rlexp.models.router import ROUTER
from rlexp.planning.live import Live

ACTIVATIONS, LOGITS, GRADIENTS, COPIES = "activations", "logits", "gradients", "copies"
"""what memory of an update is: kept for the backward or in use, chunks of logits, gradients, and weights in another dtype (autocast)"""
CHUNKS = 3
"""of loss terms that are walked: each further one would need what the one before has given back"""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the training forward computes. columns: their names. beside: companions forwarded with each row. own: columns of the algorithm."""

    columns: Sequence[str]
    beside: Sequence[str]
    own: Mapping[str, Column]


@dataclasses.dataclass(frozen=True)
class Peak:
    """Bytes by label at the moment when an update needs most; gradients are those that exist then, on an unsharded network."""

    activations: int
    logits: int
    gradients: int
    copies: int


class _Labels:
    """What a new tensor is, by its shape and by whether the backward runs."""

    def __init__(self, network: Network) -> None:
        parameters = [parameter for parameter in network.parameters() if parameter.dim() >= 2]
        self.vocabulary = int(network.head.weight.shape[0])
        self.straight = {tuple(parameter.shape) for parameter in parameters}
        self.weights = self.straight | {shape[::-1] for shape in self.straight if len(shape) == 2}
        self.backward = False

    def __call__(self, tensor: Tensor) -> str:
        shape = tuple(tensor.shape)
        if len(shape) == 2 and shape[-1] == self.vocabulary and shape not in self.straight:
            return LOGITS
        if shape in self.weights:
            return GRADIENTS if self.backward else COPIES
        return ACTIVATIONS


def update_peak(network: Network, row: MicroBatch, terms: Terms, wanted: Wanted, *, again: bool, gradient_share: float, copy_share: float) -> Peak:
    """Call it in the FakeTensorMode that the network was made in.

    again: whether a micro-batch came before, so that all gradients exist. gradient_share, copy_share: share of these bytes that counts when
    looking for the peak (sharded strategies). Raises UserError for a model whose shapes depend on numbers.
    """
    labels = _Labels(network)
    network.own_columns = dict(wanted.own)
    network.train()
    before = [*network.parameters(), *network.buffers()]
    live = Live(labels, {GRADIENTS: gradient_share, COPIES: copy_share}, before)
    try:
        with live:
            if again:
                labels.backward = True
                for parameter in network.parameters():
                    if parameter.requires_grad:
                        parameter.grad = torch.zeros_like(parameter)
                labels.backward = False
                live.restart()
            _pass(network, row, terms, wanted, labels)
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException) as error:
        name = type(network.causal).__name__
        raise UserError(f"the memory of {name} cannot be planned: its shapes depend on numbers ({str(error).splitlines()[0]})") from error
    for parameter in network.parameters():
        parameter.grad = None
    found = Counter(live.at_peak)
    found[ACTIVATIONS] += _left_out(network, len(row.row.position_L), 1 + len(wanted.beside))
    return Peak(*(int(found[label]) for label in (ACTIVATIONS, LOGITS, GRADIENTS, COPIES)))


def _terms(network: Network) -> int:
    """Loss terms that are walked."""
    return CHUNKS * network.chunk


def _left_out(network: Network, terms: int, networks: int) -> int:
    """Bytes of the further terms' hidden states, of each network, and of their gradients."""
    width = network.head.weight.shape[1] * network.head.weight.element_size()
    return max(0, terms - _terms(network)) * width * (networks + 1)


def _row(network: Network, row: Row, terms: Terms, router: bool = False) -> RowTensors:
    """A row on the network's device. Its attention is laid out from real indices, which it reads as numbers."""
    with unset_fake_temporarily():
        real = row_tensors(row, terms, torch.device("cpu"))
        if network.attention not in ("sdpa", "eager"):
            arguments(network.attention, real, network.autocast or next(network.parameters()).dtype, real.layouts)
    made = row_tensors(row, terms, network.device, shares=router)
    made.layouts = real.layouts
    made.position_L, made.target_L = made.position_L[: _terms(network)], made.target_L[: _terms(network)]
    return made


def _pass(network: Network, made: MicroBatch, terms: Terms, wanted: Wanted, labels: _Labels) -> None:
    """Forward and backward as StepRunner runs them; the loss takes every column, whatever the objective makes of them."""
    row = _row(network, made.row, terms, ROUTER in wanted.columns)
    for name in wanted.beside:
        with torch.no_grad():
            row.companions[name] = (network, network.hidden(_row(network, made.companions[name], terms)))
    columns = network(row, wanted.columns)
    loss = sum(column.sum() for column in columns.values())
    labels.backward = True
    loss.backward()
    labels.backward = False
