"""RLOO: one clipped ratio per rollout, the product over its tokens."""

from __future__ import annotations

import torch

from rlexp.config.algorithms import RLOOLossConfig
from rlexp.losses.clipped import clip_stats
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import capped


def rloo(inputs: LossInputs, config: RLOOLossConfig) -> PolicyTerm:
    """-min(R_i A_i, clip(R_i, 1 - epsilon, 1 + epsilon_high) A_i), R_i = pi(o_i) / pi_old(o_i), averaged over rollouts.

    RLOO (arXiv 2402.14740, eq. 6 and section 2.3) with PPO's clip, so that data can be reused; on-policy R_i = 1 and the gradient is that of
    -A_i log pi(o_i). Each of the |o_i| terms of a rollout carries the same number, and the reduction 1/(B |o_i|) makes that a mean over the B
    rollouts. The ratio is not normalised by length, so long rollouts clip almost at once when a batch is used again. All samples of a
    rollout must be in this row.
    """
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    log_ratio_R = inputs.rollout_sum(inputs.logp_L - inputs.old_logp_L)
    ratio_L = torch.exp(capped(log_ratio_R)).index_select(0, inputs.rollout_L)
    advantage_L = inputs.where_active(inputs.advantage_L)
    value_L = -torch.minimum(ratio_L * advantage_L, ratio_L.clamp(1 - config.epsilon, 1 + high) * advantage_L)
    low_L = (ratio_L < 1 - config.epsilon) & (advantage_L < 0)
    high_L = (ratio_L > 1 + high) & (advantage_L > 0)
    return PolicyTerm(value_L, ratio_L, clip_stats(inputs, low_L, high_L, per_rollout=True))
