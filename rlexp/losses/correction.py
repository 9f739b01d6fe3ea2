"""Importance weights for a sampler whose probabilities differ from the trainer's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlexp.losses.inputs import LossInputs
from rlexp.losses.ratio import LOG_RATIO_LIMIT
from rlexp.records.stats import MAX, MEAN, MIN, Stat


@dataclass(frozen=True)
class Correction:
    """mode: token_truncate, token_mask, sequence_truncate or sequence_mask. clip_min, clip_max: bounds of the weight, None for none.

    normalize: a sequence's weight is the geometric mean of its tokens' instead of their product.
    """

    mode: str
    clip_min: float | None = None
    clip_max: float | None = 3.0
    normalize: bool = False

    @property
    def per_rollout(self) -> bool:
        """One weight for all terms of a rollout."""
        return self.mode.startswith("sequence")


@torch.no_grad()
def correction_weights(inputs: LossInputs, correction: Correction) -> Tensor:
    """w = pi_old / pi_sampler of each term, bounded, without gradient, [L].

    Both policies have the weights that sampled; they differ because the generator's numerics do. token: exp(old - sampler) of each
    term; sequence: of the sum over the rollout's terms, whose samples must all be in this row. truncate: clamped to [clip_min,
    clip_max] (TIS, https://fengyao.notion.site/off-policy-rl; the lower bound as in IcePop, arXiv 2510.18855); mask: 0 outside
    them (MIS, IcePop). The terms stay in the denominators. A log-prob that is not a number makes the weight NaN, and the run ends.
    """
    log_L = inputs.where_active(inputs.old_logp_L - inputs.sampler_logp_L)
    if correction.per_rollout:
        log_R = inputs.rollout_sum(log_L)
        log_R = log_R / inputs.tokens_R.clamp(min=1) if correction.normalize else log_R
        log_L = log_R.index_select(0, inputs.rollout_L)
    weight_L = torch.exp(log_L.clamp(max=LOG_RATIO_LIMIT))
    low, high = correction.clip_min, correction.clip_max
    if correction.mode.endswith("truncate"):
        return weight_L.clamp(low, high)
    outside_L = torch.zeros_like(inputs.active_L)
    if low is not None:
        outside_L = outside_L | (weight_L < low)
    if high is not None:
        outside_L = outside_L | (weight_L > high)
    return torch.where(outside_L, 0.0, weight_L)


@torch.no_grad()
def correction_stats(inputs: LossInputs, weight_L: Tensor, correction: Correction) -> dict[str, Stat]:
    """Smallest, mean and largest weight after its bounds, over active terms, or over rollouts in the sequence modes."""
    ones_L = torch.ones_like(weight_L)
    if correction.per_rollout:
        terms_R = inputs.rollout_sum(ones_L)
        values, there = inputs.rollout_sum(weight_L) / terms_R, terms_R > 0
    else:
        values, there = weight_L, inputs.active_L
    nothing = values.new_full((1,), torch.inf)
    smallest = torch.cat([torch.where(there, values, torch.inf), nothing]).amin()
    largest = torch.cat([torch.where(there, values, -torch.inf), -nothing]).amax()
    total = torch.where(there, values, 0.0).sum()
    low, high, mean, count = torch.stack([smallest, largest, total, there.sum().to(total.dtype)]).tolist()
    name = "sampling/importance_sampling_ratio"
    return {f"{name}/min": Stat(MIN, low), f"{name}/mean": Stat(MEAN, mean, count), f"{name}/max": Stat(MAX, high)}
