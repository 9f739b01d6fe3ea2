"""VESPO: REINFORCE weighted by a gamma-shaped function of the whole rollout's ratio."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlexp.config.losses import VESPOLossConfig
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import LOG_RATIO_LIMIT, importance_ratio
from rlexp.records.stats import MEAN, Stat

LOG_SMALLEST = math.log(1e-8)
"""Smallest log of a rollout's ratio: phi is 0 to six digits there with the default exponents"""


def vespo(inputs: LossInputs, config: VESPOLossConfig) -> PolicyTerm:
    """VESPO (arXiv 2602.10693): -phi(W_i) A logp for each term, phi(W) = W^k exp(lambda (1 - W)), without gradient.

    W_i is the product of the rollout's token ratios (a sum of logs, each clamped to +-20, the sum to [log 1e-8, 20]), k and lambda
    are the positive pair where A >= 0 and the negative pair elsewhere. phi(1) = 1; an infinite phi (extreme exponents) counts
    as 0. A correction's token weights enter W_i as further factors, each log at least log 1e-8 (and at most 20 as it is). Denominator: N, the active tokens
    of the whole step, so that phi alone decides how much a rollout weighs. All samples of a rollout must be in this row.
    """
    phi_L = _phi(inputs, config)
    value_L = -phi_L * inputs.where_active(inputs.advantage_L) * inputs.where_active(inputs.logp_L)
    terms_R = inputs.rollout_sum(torch.ones_like(phi_L))
    phi_R = inputs.rollout_sum(phi_L) / terms_R.clamp(min=1)
    total, count = torch.stack([phi_R.sum(), (terms_R > 0).sum().to(phi_R.dtype)]).tolist()
    return PolicyTerm(value_L, importance_ratio(inputs, "token"), {"vespo/phi_seq_mean": Stat(MEAN, total, count)})


@torch.no_grad()
def _phi(inputs: LossInputs, config: VESPOLossConfig) -> Tensor:
    """The weight of each term, the same for all terms of a rollout, [L]. Masked terms are left out of the sum."""
    log_ratio_L = (inputs.logp_L - inputs.old_logp_L).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if inputs.weight_L is not None:
        log_ratio_L = log_ratio_L + inputs.weight_L.log().clamp(min=LOG_SMALLEST)
    log_weight_L = inputs.rollout_sum(log_ratio_L).clamp(LOG_SMALLEST, LOG_RATIO_LIMIT).index_select(0, inputs.rollout_L)
    positive_L = inputs.advantage_L >= 0
    k_L = torch.where(positive_L, log_weight_L.new_tensor(config.vespo_k_pos), log_weight_L.new_tensor(config.vespo_k_neg))
    lambda_L = torch.where(positive_L, log_weight_L.new_tensor(config.vespo_lambda_pos), log_weight_L.new_tensor(config.vespo_lambda_neg))
    phi_L = torch.exp(lambda_L + k_L * log_weight_L - lambda_L * torch.exp(log_weight_L))
    return torch.where(torch.isinf(phi_L), 0.0, phi_L)
