"""The PPO-clip term that grpo, bnpo, dr_grpo, dapo and luspo share, and its metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from rlexp.config.algorithm import ClippedLossConfig
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import importance_ratio
from rlexp.records.stats import MAX, MEAN, MIN, Stat


def clipped_term(inputs: LossInputs, config: ClippedLossConfig) -> PolicyTerm:
    """-min(min(r, delta) A, clip(r, 1 - epsilon, 1 + epsilon_high) A) for each term, [L].

    PPO (arXiv 1707.06347, eq. 7); epsilon_high is DAPO's clip-higher (arXiv 2503.14476), delta the upper bound of INTELLECT-2
    (arXiv 2505.07291): it bounds the unclipped branch only, so it acts where A < 0, unless delta < 1 + epsilon_high.
    """
    low = 1 - config.epsilon
    high = 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)
    ratio_L = importance_ratio(inputs, config.importance_sampling_level)
    advantage_L = inputs.where_active(inputs.advantage_L)
    bounded_L = ratio_L if config.delta is None else ratio_L.clamp(max=config.delta)
    value_L = -torch.minimum(bounded_L * advantage_L, ratio_L.clamp(low, high) * advantage_L)
    low_L = (bounded_L < low) & (advantage_L < 0)
    high_L = (bounded_L > high) & (advantage_L > 0)
    stats = clip_stats(inputs, low_L, high_L, per_rollout=config.importance_sampling_level != "token")
    return PolicyTerm(value_L, ratio_L, stats)


@torch.no_grad()
def clip_stats(inputs: LossInputs, low_L: Tensor, high_L: Tensor, *, per_rollout: bool) -> dict[str, Stat]:
    """The share of terms (per_rollout: of rollouts) that are clipped, and the extremes of the rollouts' own shares.

    low_L, high_L: bool, clipped from below or above. A rollout without active terms in this row has no share. One transfer
    from the device for all numbers.
    """
    ones_L = torch.ones_like(inputs.active_L, dtype=torch.float32)
    terms_R = inputs.rollout_sum(ones_L)
    has_R = terms_R > 0
    clipped_R = {name: inputs.rollout_sum(ones_L * flag_L) for name, flag_L in (("low", low_L), ("high", high_L), ("region", low_L | high_L))}
    share_R = {name: sum_R / terms_R.clamp(min=1) for name, sum_R in clipped_R.items()}
    sums = share_R if per_rollout else clipped_R
    nothing = ones_L.new_full((1,), torch.inf)
    numbers = torch.stack(
        [
            has_R.sum() if per_rollout else terms_R.sum(),
            *(sums[name].sum() for name in ("low", "high", "region")),
            torch.cat([torch.where(has_R, share_R["low"], torch.inf), nothing]).amin(),
            torch.cat([torch.where(has_R, share_R["high"], -torch.inf), -nothing]).amax(),
        ]
    )
    count, low_sum, high_sum, region_sum, low_min, high_max = numbers.tolist()
    return {
        "clip_ratio/low_mean": Stat(MEAN, low_sum, count),
        "clip_ratio/low_min": Stat(MIN, low_min),
        "clip_ratio/high_mean": Stat(MEAN, high_sum, count),
        "clip_ratio/high_max": Stat(MAX, high_max),
        "clip_ratio/region_mean": Stat(MEAN, region_sum, count),
    }
