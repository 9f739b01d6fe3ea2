"""Companions: networks that are forwarded but not trained (reference, teacher)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlexp.distributed.shards import assign, move
from rlexp.distributed.zero import is_partitioned
from rlexp.models.adapters import freeze_reference, reference_weights, set_reference
from rlexp.models.network import Network, RowTensors


class Companion:
    """A copy of a network, frozen or slowly following it.

    rate: after each `every` optimizer steps its weights become (1 - rate) * its own + rate * the source's; 0 keeps them frozen.
    """

    def __init__(self, source: Network, *, rate: float = 0.0, every: int = 1) -> None:
        self.source, self.rate, self.every = source, rate, every
        self.network = copy.deepcopy(source).requires_grad_(False).eval()

    @torch.no_grad()
    def score(self, row: RowTensors, names: list[str]) -> dict[str, Tensor]:
        """Columns without gradient, dropout off, at the source's temperature: identical weights give identical numbers."""
        return self.network(row, names)

    @torch.no_grad()
    def hidden(self, row: RowTensors) -> Tensor:
        """Hidden states [L, D] without gradient."""
        return self.network.hidden(row)

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Move towards the source after optimizer step `step`."""
        if self.rate and step % self.every == 0:
            for mine, theirs in zip(self.network.parameters(), self.source.parameters(), strict=True):
                move(mine, theirs, self.rate)

    def restart(self) -> None:
        """Take the source's weights as they are now."""
        for mine, theirs in zip(self.network.parameters(), self.source.parameters(), strict=True):
            assign(mine, theirs)

    def state_dict(self) -> dict[str, Any]:
        """Weights to save: those of a frozen copy too, because the run may have started from other weights than are on disk now."""
        return {name: weight if is_partitioned(weight) else weight.detach().cpu() for name, weight in self._weights().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave. Raises KeyError for the weights of another network."""
        for name, weight in self._weights().items():
            assign(weight, state[name])

    def _weights(self) -> dict[str, Tensor]:
        """Each once, under its first name: a tied head is its embeddings."""
        named = self.network.state_dict(keep_vars=True)
        first: dict[int, str] = {}
        for name, weight in named.items():
            first.setdefault(id(weight), name)
        return {name: named[name] for name in first.values()}


class AdapterReference:
    """The reference of a policy trained through an adapter: the same network with the adapter off (or its frozen first state)."""

    rate = 0.0

    def __init__(self, source: Network, switch: Callable[[], contextlib.AbstractContextManager]) -> None:
        self.network, self.switch = source, switch

    @torch.no_grad()
    def score(self, row: RowTensors, names: list[str]) -> dict[str, Tensor]:
        """Columns without gradient under the reference's weights."""
        training = self.network.training
        self.network.eval()
        try:
            with self.switch():
                return self.network(row, names)
        finally:
            self.network.train(training)

    @torch.no_grad()
    def hidden(self, row: RowTensors) -> Tensor:
        """Hidden states [L, D] under the reference's weights, dropout off."""
        training = self.network.training
        self.network.eval()
        try:
            with self.switch():
                return self.network.hidden(row)
        finally:
            self.network.train(training)

    def follow(self, step: int) -> None:
        """It never moves."""

    def restart(self) -> None:
        """Take the adapter's weights as they are now."""
        freeze_reference(self.network.module)

    def state_dict(self) -> dict[str, Any]:
        """Weights of the frozen adapter, because the run may have started from another one than is on disk now; {} for the bare base."""
        return {key: value.detach().cpu() for key, value in reference_weights(self.network.module).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""
        if state:
            set_reference(self.network.module, state)
