"""The networks of a run: trained ones with their optimizers, and the companions beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.distributed.shards import Rows, shaped_like
from rlexp.models.companion import AdapterReference, Companion
from rlexp.models.network import Network
from rlexp.models.teacher import FollowingAdapter, LiveCompanion, OtherModel

AnyCompanion = Companion | AdapterReference | LiveCompanion | FollowingAdapter | OtherModel


@dataclass
class Trainable:
    """One trained network: its rows, objective, optimizer and gradient clip are its own."""

    network: Network
    wrapped: Callable[..., dict[str, Tensor]]
    """what the training forward calls (the strategy's view of the network)"""
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    max_grad_norm: float | None
    companions: dict[str, AnyCompanion] = field(default_factory=dict)
    """by name: reference, teacher, ..."""

    def trained_state(self) -> dict[str, Tensor]:
        """The weights that training changes, by name."""
        return {name: parameter for name, parameter in self.network.named_parameters() if parameter.requires_grad}

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and companions."""
        return {"optimizer": self.optimizer.state_dict(), "companions": {name: companion.state_dict() for name, companion in self.companions.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave, in any number of processes: this one takes its part of whole tensors, or all rows of those that were cut."""
        kept = state["optimizer"]
        moments = {place: {name: _fitted(value, self.parameters[place]) for name, value in of.items()} for place, of in kept["state"].items()}
        self.optimizer.load_state_dict({**kept, "state": moments})
        for name, companion in self.companions.items():
            companion.load_state_dict(state["companions"][name])


def _fitted(value: Tensor | Rows | Any, parameter: nn.Parameter) -> Any:
    """A number of the optimizer for each of a parameter's weights, laid out as the parameter is; anything else as it is."""
    of_weights = parameter.dim() > 0 and tuple(getattr(value, "shape", ())) == tuple(parameter.shape)
    return shaped_like(value, parameter) if of_weights else value
