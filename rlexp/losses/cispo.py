"""CISPO: REINFORCE weighted by a bounded importance ratio."""

from __future__ import annotations

import torch

from rlexp.config.losses import CISPOLossConfig
from rlexp.losses.clipped import clip_stats
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import importance_ratio


def cispo(inputs: LossInputs, config: CISPOLossConfig) -> PolicyTerm:
    """MiniMax-M1 (arXiv 2506.13585, section 3.1, eq. 4 and 5): -sg(min(r, epsilon_high)) A logp for each term; the paper sets no lower bound.

    Every token keeps a gradient, also one whose ratio is at the bound. The bound is epsilon_high itself; ScaleRL
    (arXiv 2510.13786) advises about 5. Denominator: N, the active tokens of the whole step, as in the paper's eq. 4.
    """
    ratio_L = importance_ratio(inputs, config.importance_sampling_level)
    weight_L = ratio_L.detach().clamp(max=config.epsilon_high)
    advantage_L = inputs.where_active(inputs.advantage_L)
    value_L = -weight_L * advantage_L * inputs.where_active(inputs.logp_L)
    high_L = (ratio_L > config.epsilon_high) & (advantage_L > 0)
    shares = clip_stats(inputs, torch.zeros_like(high_L), high_L, per_rollout=config.importance_sampling_level != "token")
    return PolicyTerm(value_L, ratio_L, {"cispo_clip_ratio": shares["clip_ratio/high_mean"]})
