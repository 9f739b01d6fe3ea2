"""DPPO: tokens whose probability has moved too far are masked, however large their ratio is."""

from __future__ import annotations

import torch

from rlexp.config.losses import DPPOLossConfig
from rlexp.losses.clipped import clip_stats
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import capped


def dppo(inputs: LossInputs, config: DPPOLossConfig) -> PolicyTerm:
    """Divergence proximal policy optimisation (arXiv 2602.04879, the binary total variation form): -M r A for each term.

    r = pi / mu, mu being the policy that really sampled, so that its numerics are inside the trust region too. M is 0 where the token's
    total variation |pi - mu| exceeds delta_high and the probability grew with A > 0, or exceeds delta_low and it shrank with A < 0;
    else 1. A ratio clip binds rare tokens much and frequent ones hardly; this one bounds the probability that moves. Denominator: N, the
    active tokens of the whole step, masked ones too.
    """
    high = config.delta_low if config.delta_high is None else config.delta_high
    advantage_L = inputs.where_active(inputs.advantage_L)
    ratio_L = torch.exp(capped(inputs.where_active(inputs.logp_L - inputs.sampler_logp_L)))
    with torch.no_grad():
        moved_L = torch.exp(inputs.logp_L) - torch.exp(inputs.sampler_logp_L)
        low_L, high_L = (moved_L < -config.delta_low) & (advantage_L < 0), (moved_L > high) & (advantage_L > 0)
    value_L = -(ratio_L * advantage_L) * (~(low_L | high_L)).to(ratio_L.dtype)
    return PolicyTerm(value_L, ratio_L, clip_stats(inputs, low_L, high_L, per_rollout=False))
