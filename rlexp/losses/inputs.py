"""What a loss sees of one micro-batch, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlexp.records.stats import Stat


@dataclass
class LossInputs:
    """The loss terms of one row. All `_L` tensors have one entry per loss term.

    A loss never sees logits: only columns, which are functions of one term's logits each.
    """

    columns: dict[str, Tensor]
    """of this forward, with gradient: logp [L], and entropy, value, divergence [L] when asked for"""
    before: dict[str, Tensor]
    """scored once per batch, without gradient: old, reference, value, entropy [L]"""
    advantage_L: Tensor
    sampler_logp_L: Tensor
    """log-prob under the distribution really sampled from"""
    active_L: Tensor
    """bool; False: the term is masked, and whatever its numbers are (NaN too) never reaches loss or gradient"""
    scale_L: Tensor
    """reduction factor fixed before the first forward: the loss is sum_L scale_L * x_L"""
    rollout_L: Tensor
    """int64, row-local number 0..R-1 of the term's rollout"""
    tokens_R: Tensor
    """loss terms of each of these rollouts in the whole step (all its samples)"""
    weight_L: Tensor | None = None
    """importance weight for the sampler, without gradient, for a loss that takes it itself (takes_correction)"""
    router: Tensor | None = None
    """load-balancing loss of the row, a scalar with gradient, when the objective asked for the column "router" """
    router_share: float = 0.0
    """the row's part of the positions of the step, over which that loss is averaged"""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """further per-term numbers an algorithm attached to the batch (returns, masks, ...)"""

    @property
    def logp_L(self) -> Tensor:
        """Log-prob of the target now, with gradient."""
        return self.columns["logp"]

    @property
    def old_logp_L(self) -> Tensor:
        """Log-prob when the batch was sampled; the stop-gradient of logp_L in a first pass, so that the ratio is exactly 1."""
        old = self.before.get("old")
        return self.logp_L.detach() if old is None else old

    def where_active(self, x_L: Tensor) -> Tensor:
        """x at the active terms and 0 at the others, whatever x is there: neither its value nor its gradient gets through.

        Apply it before anything non-linear: `where` after an exp or a product still passes NaN * 0 to the gradient.
        """
        return torch.where(self.active_L, x_L, torch.zeros_like(x_L))

    def rollout_sum(self, x_L: Tensor) -> Tensor:
        """Sum of x over the active terms of each rollout, [R]."""
        out = torch.zeros(len(self.tokens_R), dtype=x_L.dtype, device=x_L.device)
        return out.index_add(0, self.rollout_L, self.where_active(x_L))


@dataclass
class PolicyTerm:
    """A loss's value for each term (the mean or sum over terms is the reduction's business), and its metrics."""

    value_L: Tensor
    ratio_L: Tensor | None = None
    """importance ratio, before any upper clamp, with gradient: the KL term's bias correction uses it"""
    stats: dict[str, Stat] = field(default_factory=dict)
