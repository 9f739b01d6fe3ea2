"""The objective of a policy: its loss, the KL term, the mask and the scale of each term, added up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlexp.config.errors import UserError
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.kl import k3
from rlexp.records.stats import MEAN, SUM, Stat


@dataclass
class ObjectiveResult:
    """loss: scalar with gradient, this micro-batch's part of the step's loss. stats: its part of the step's metrics."""

    loss: Tensor
    stats: dict[str, Stat] = field(default_factory=dict)


class PolicyObjective:
    """sum over active terms of scale * (policy term + beta * KL): a pure sum, so micro-batches and ranks add up.

    loss: a function (LossInputs, config) -> PolicyTerm. config: its dataclass. beta: KL coefficient; 0 needs no reference.
    use_bias_correction_kl: multiply the KL term by the loss's importance ratio.
    """

    def __init__(self, loss: Callable[[LossInputs, Any], PolicyTerm], config: Any, *, beta: float = 0.0, use_bias_correction_kl: bool = True) -> None:
        self.loss = loss
        self.config = config
        self.beta = beta
        self.use_bias_correction_kl = use_bias_correction_kl
        self.columns: frozenset[str] = frozenset({"logp", "entropy"})
        """of the training forward; entropy is for the metric"""
        self.before: frozenset[str] = frozenset({"reference"}) if beta else frozenset()
        """scored before the first step"""

    def __call__(self, inputs: LossInputs) -> ObjectiveResult:
        """Loss and metrics of one row.

        The order matters and is fixed: the loss's policy term; factors on it (masks, correction weights); the additive KL,
        which those factors do not touch; mask and scale. Terms with a mask and a scale of their own are added to the sum.
        """
        term = self.loss(inputs, self.config)
        x_L = term.value_L
        kl_L = self._kl(inputs, term) if self.beta else None
        if kl_L is not None:
            x_L = x_L + self.beta * kl_L
        scale_L = inputs.where_active(inputs.scale_L)
        loss = (scale_L * inputs.where_active(x_L)).sum()
        return ObjectiveResult(loss, {**self._stats(inputs, loss, kl_L), **term.stats})

    def _kl(self, inputs: LossInputs, term: PolicyTerm) -> Tensor:
        if not self.use_bias_correction_kl:
            return k3(inputs)
        if term.ratio_L is None:
            raise UserError(f"loss={self.config.name} has no importance ratio for the KL term: set algorithm.use_bias_correction_kl=false or algorithm.beta=0")
        return k3(inputs, term.ratio_L)

    @torch.no_grad()
    def _stats(self, inputs: LossInputs, loss: Tensor, kl_L: Tensor | None) -> dict[str, Stat]:
        """Sums over active terms; one transfer from the device for all numbers."""
        means = {"entropy": inputs.columns["entropy"]}
        if kl_L is not None:
            means["kl"] = kl_L
        sums = [inputs.where_active(x_L).sum() for x_L in means.values()]
        loss_sum, active, *values = torch.stack([loss.detach(), inputs.active_L.sum().to(loss.dtype), *(x.to(loss.dtype) for x in sums)]).tolist()
        return {"loss": Stat(SUM, loss_sum), **{name: Stat(MEAN, value, active) for name, value in zip(means, values, strict=True)}}
