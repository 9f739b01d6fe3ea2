"""Companions that are not plain copies: the network itself, and an adapter beside the trained one that slowly follows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlexp.distributed.shards import own_part
from rlexp.models.adapters import adapter_weights, as_adapter, set_adapter_weights
from rlexp.models.network import Network, RowTensors


@contextlib.contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Dropout off, and afterwards as it was."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


class LiveCompanion:
    """A network as it is, without gradient and dropout: the trained one itself. Nothing moves it and no checkpoint holds it."""

    rate = 0.0

    def __init__(self, network: Network) -> None:
        self.network = network

    @torch.no_grad()
    def score(self, row: RowTensors, names: list[str]) -> dict[str, Tensor]:
        """Columns without gradient."""
        with evaluating(self.network):
            return self.network(row, names)

    @torch.no_grad()
    def hidden(self, row: RowTensors) -> Tensor:
        """Hidden states [L, D] without gradient."""
        with evaluating(self.network):
            return self.network.hidden(row)

    def follow(self, step: int) -> None:
        """It has nothing to follow."""

    def restart(self) -> None:
        """It has nothing of its own to start from."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing of its own."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing of its own."""


class FollowingAdapter:
    """A second adapter on the same base weights that starts equal to the trained one and follows it.

    After each `every` optimizer steps each factor becomes (1 - rate) * its own + rate * the trained one's. The average of the products
    B A is not the product of the averages: after one step from B = 0 the teacher's update is rate * B1 (A0 + rate * (A1 - A0)) in place
    of rate * B1 A1. The difference is of second order in the steps, because both factors stay near the trained ones (a teacher that starts
    from zero factors would have the square of the rate here). An average of whole updates would need their full matrices.
    """

    def __init__(self, source: Network, name: str, *, rate: float, every: int) -> None:
        self.network, self.name, self.rate, self.every = source, name, rate, every
        self.restart()

    @torch.no_grad()
    def score(self, row: RowTensors, names: list[str]) -> dict[str, Tensor]:
        """Columns without gradient, dropout off."""
        with evaluating(self.network), as_adapter(self.network.module, self.name):
            return self.network(row, names)

    @torch.no_grad()
    def hidden(self, row: RowTensors) -> Tensor:
        """Hidden states [L, D] without gradient."""
        with evaluating(self.network), as_adapter(self.network.module, self.name):
            return self.network.hidden(row)

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Move towards the trained adapter after optimizer step `step`."""
        if step % self.every == 0:
            trained = adapter_weights(self.network.module)
            for name, mine in adapter_weights(self.network.module, self.name).items():
                own_part(mine).lerp_(own_part(trained[name]), self.rate)

    def restart(self) -> None:
        """Take the trained adapter's weights as they are now."""
        set_adapter_weights(self.network.module, self.name, adapter_weights(self.network.module))

    def state_dict(self) -> dict[str, Any]:
        """Its weights."""
        return {key: value.detach().cpu() for key, value in adapter_weights(self.network.module, self.name).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""
        set_adapter_weights(self.network.module, self.name, state)


class OtherModel(LiveCompanion):
    """A network with weights of its own that never move (a larger model that teaches). Checkpoints keep its path only, in the config."""

    def __init__(self, network: Network) -> None:
        super().__init__(network.requires_grad_(False).eval())
