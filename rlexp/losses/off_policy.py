"""A mask on rollouts that the policy has moved away from."""

from __future__ import annotations

import torch
from torch import Tensor

from rlexp.losses.inputs import LossInputs


@torch.no_grad()
def near_policy(inputs: LossInputs, threshold: float) -> Tensor:
    """1 for terms of rollouts that are kept and 0 for others, [L]: kept if A >= 0 or mean of (sampler - logp) <= threshold.

    DeepSeek-V3.2 (arXiv 2512.02556, eq. 8 and 9): a rollout with negative advantage that the policy has become much less likely to
    produce than the sampler was teaches nothing any more and destabilises. The mean is over the rollout's terms, so all its
    samples must be in this row. Where the sampler gave no number (NaN), old takes its place.
    """
    sampler_L = torch.where(torch.isnan(inputs.sampler_logp_L), inputs.old_logp_L, inputs.sampler_logp_L)
    gap_R = inputs.rollout_sum(sampler_L - inputs.logp_L) / inputs.tokens_R  # NaN for a rollout without terms, which has none to mask
    keep_L = (inputs.advantage_L >= 0) | (gap_R <= threshold).index_select(0, inputs.rollout_L)
    return keep_L.to(inputs.logp_L.dtype)
