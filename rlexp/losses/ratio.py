"""Importance ratio pi / pi_old, one per token or one per rollout, and the cap that keeps exponentials finite."""

from __future__ import annotations

import torch
from torch import Tensor

from rlexp.config.errors import UserError
from rlexp.losses.inputs import LossInputs

LOG_RATIO_LIMIT = 20.0
"""Largest exponent a ratio or a KL term sees: exp(20) = 4.9e8, whose square still fits float32, which gradient norms and
Adam's second moment need. float32's exp overflows at 88.72. Nothing below it is changed."""


def capped(exponent: Tensor) -> Tensor:
    """min(exponent, LOG_RATIO_LIMIT) in value, with slope 1 everywhere.

    The slope stays because a cut-off one turns the gradient of ratio * KL around: its two halves, which cancel almost
    completely, must be capped alike. An infinite exponent gives NaN, so that a broken log-prob ends the run and does not
    become a constant.
    """
    return exponent + (exponent.clamp(max=LOG_RATIO_LIMIT) - exponent).detach()


def importance_ratio(inputs: LossInputs, level: str) -> Tensor:
    """The ratio each term is weighted by, with gradient, [L]; finite (1 at token level) at masked terms.

    level "token": exp(logp - old). "sequence" (GSPO, arXiv 2507.18071, eq. 7): exp of the rollout's mean log-ratio, the same
    for all its terms. "sequence_token" (GSPO-token, ibid. eq. 14): that value, with the gradient of each token's own
    log-prob instead of the mean's. The mean is over the rollout's tokens in the step, so all its samples must be in this row.
    """
    log_ratio_L = inputs.where_active(inputs.logp_L - inputs.old_logp_L)
    if level == "token":
        return torch.exp(capped(log_ratio_L))
    if level not in ("sequence", "sequence_token"):
        raise UserError(f"loss.importance_sampling_level={level!r} is unknown: use token, sequence or sequence_token")
    mean_R = inputs.rollout_sum(log_ratio_L) / inputs.tokens_R.clamp(min=1)
    if level == "sequence":
        return torch.exp(capped(mean_R)).index_select(0, inputs.rollout_L)
    mean_L = mean_R.detach().index_select(0, inputs.rollout_L)
    return torch.exp(capped(mean_L + log_ratio_L - log_ratio_L.detach()))
