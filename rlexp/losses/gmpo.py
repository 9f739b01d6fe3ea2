"""GMPO: the geometric mean of the tokens' clipped ratios, one number per rollout."""

from __future__ import annotations

import torch

from rlexp.config.losses import GMPOLossConfig
from rlexp.losses.clipped import clip_stats
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import capped, importance_ratio


def gmpo(inputs: LossInputs, config: GMPOLossConfig) -> PolicyTerm:
    """Geometric-mean policy optimisation (arXiv 2507.20673, section 3 and algorithm 1): -A_i exp(mean over the tokens of the clipped log-ratio).

    Each token's log-ratio is clipped to [-log_epsilon, log_epsilon_high] on the side its advantage pushes to (the minimum of the signed
    log-ratio and its clipped form), before the mean, so one outlier moves neither the ratio nor, through it, the other tokens. All terms
    of a rollout carry the same number. Denominator: B |o_i|, which makes the loss the plain mean over B rollouts. All samples of a
    rollout must be in this row. With correction weights of tokens, a rollout's number is weighted by their mean.
    """
    high = config.log_epsilon if config.log_epsilon_high is None else config.log_epsilon_high
    advantage_L = inputs.where_active(inputs.advantage_L)
    log_ratio_L = inputs.logp_L - inputs.old_logp_L  # rollout_sum masks
    sign_L = torch.sign(advantage_L)
    clipped_L = sign_L * torch.minimum(sign_L * log_ratio_L, sign_L * log_ratio_L.clamp(-config.log_epsilon, high))
    mean_R = inputs.rollout_sum(clipped_L) / inputs.tokens_R.clamp(min=1)
    value_L = -advantage_L * torch.exp(capped(mean_R)).index_select(0, inputs.rollout_L)
    low_L, high_L = (log_ratio_L < -config.log_epsilon) & (advantage_L < 0), (log_ratio_L > high) & (advantage_L > 0)
    return PolicyTerm(value_L, importance_ratio(inputs, "sequence"), clip_stats(inputs, low_L, high_L, per_rollout=False))
