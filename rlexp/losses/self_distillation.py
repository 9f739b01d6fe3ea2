"""The loss of algorithm=sdpo: (1 - w) * policy loss + w * distillation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlexp.config.sdpo import SDPOConfig
from rlexp.losses.distillation import clipped_ratio, divergence, on_given_support, sampled
from rlexp.losses.inputs import LossInputs
from rlexp.losses.objective import ObjectiveResult, PolicyObjective
from rlexp.records.stats import MEAN, SUM, Stat

SCALE = "distillation_scale"
"""in LossInputs.extra: the factor of each term; 0 where no teacher speaks"""
SERVER_LOGP, SERVER_SUPPORT = "server_logp", "server_support_logp"
"""in LossInputs.extra: what a server says of the sampled token, [L], and of the tokens of its support, [L, C]"""


def distillation_scale(mask_L: np.ndarray, rollout_L: np.ndarray, step_R: np.ndarray, counted_R: np.ndarray, normalize: str) -> np.ndarray:
    """1 / (B |o_i|) for the terms of mask_L and 0 elsewhere, float64 [L]: the mean over rollouts of the mean over their tokens.

    |o_i|: the rollout's terms in mask_L. B: rollouts of its step in counted_R (normalize=all), or those with a term in mask_L (active).
    step_R: the step of each rollout.
    """
    tokens_R = np.bincount(rollout_L, mask_L, minlength=len(step_R))
    counts_R = counted_R if normalize == "all" else tokens_R > 0
    rollouts_R = np.bincount(step_R, counts_R)[step_R]
    scale_R = 1.0 / (np.maximum(rollouts_R, 1) * np.maximum(tokens_R, 1))
    return np.where(mask_L, scale_R[rollout_L], 0.0) if len(rollout_L) else np.zeros(0)


def taught_terms(inputs: LossInputs) -> Tensor:
    """Whether a teacher speaks of each term and the term counts (none does in a filler row), bool [L]."""
    return inputs.active_L & (inputs.extra[SCALE] > 0)


def where_taught(inputs: LossInputs, x: Tensor) -> Tensor:
    """x, [L] or [L, C], at those terms and 0 at the others, whatever is there: as where_active, before anything non-linear."""
    taught_L = taught_terms(inputs)
    return torch.where(taught_L if x.dim() == 1 else taught_L[:, None], x, 0.0)


class SelfDistillationObjective:
    """Both parts as pure sums, so micro-batches and ranks add up. A part whose weight is 0 is not computed.

    The load-balancing loss of a mixture of experts (policy.router_coef) belongs to neither and keeps its own weight.
    """

    def __init__(self, config: SDPOConfig, policy: PolicyObjective) -> None:
        self.weight, self.clip, self.policy = config.distillation_weight, config.distillation_is_clip, policy
        self.alpha, self.add_tail = config.distillation_alpha, config.distillation_add_tail
        self.router_coef = 0.0

    def __call__(self, inputs: LossInputs) -> ObjectiveResult:
        """Loss and metrics of one row."""
        loss = inputs.scale_L.new_zeros(())
        stats: dict[str, Stat] = {}
        if self.weight < 1:
            policy = self.policy(inputs)
            loss = loss + (1.0 - self.weight) * policy.loss
            stats.update(policy.stats)
            stats["self_distillation/policy_loss"] = Stat(SUM, policy.loss.item())
        else:
            entropy, active = inputs.where_active(inputs.columns["entropy"]).sum(), inputs.active_L.sum()
            stats["entropy"] = Stat(MEAN, entropy.item(), active.item())
        if self.weight > 0:
            distillation = self.distillation(inputs)
            loss = loss + self.weight * distillation
            if SERVER_LOGP in inputs.extra:
                stats["self_distillation/server_logprob_abs_diff"] = self._difference(inputs)
            stats["self_distillation/distillation_loss"] = stats["sdpo/distillation_loss"] = Stat(SUM, distillation.item())
        if self.router_coef:
            loss = loss + self.router_coef * self.policy.router_part(inputs, stats)
        stats["loss"] = Stat(SUM, loss.item())
        return ObjectiveResult(loss, stats)

    def distillation(self, inputs: LossInputs) -> Tensor:
        """Sum of scale * ratio * divergence over the terms a teacher speaks of."""
        scale_L = where_taught(inputs, inputs.extra[SCALE])
        if self.clip is not None:
            scale_L = scale_L * clipped_ratio(where_taught(inputs, inputs.logp_L), where_taught(inputs, inputs.old_logp_L), self.clip)
        return (scale_L * self._per_token(inputs)).sum()

    def _per_token(self, inputs: LossInputs) -> Tensor:
        """The divergence of each term, 0 where no teacher speaks: the column, or from what a server said."""
        if SERVER_LOGP not in inputs.extra:
            return where_taught(inputs, inputs.columns["distillation"])
        if SERVER_SUPPORT not in inputs.extra:
            return sampled(where_taught(inputs, inputs.logp_L), where_taught(inputs, inputs.extra[SERVER_LOGP]))
        mine, theirs = (where_taught(inputs, x_LC) for x_LC in (inputs.columns["support_logp"], inputs.extra[SERVER_SUPPORT]))
        return divergence(*on_given_support(mine, theirs, self.add_tail), self.alpha)

    @staticmethod
    @torch.no_grad()
    def _difference(inputs: LossInputs) -> Stat:
        """|policy - server's teacher| of sampled tokens: jumps when the server holds old weights."""
        gap_L = where_taught(inputs, inputs.logp_L - inputs.extra[SERVER_LOGP]).abs()
        return Stat(MEAN, gap_L.sum().item(), taught_terms(inputs).sum().item())
