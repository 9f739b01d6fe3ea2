"""KL divergence to the reference model, estimated per token."""

from __future__ import annotations

import torch
from torch import Tensor

from rlexp.losses.inputs import LossInputs
from rlexp.losses.ratio import capped


def k3(inputs: LossInputs, ratio_L: Tensor | None = None) -> Tensor:
    """Schulman's k3, exp(d) - d - 1 with d = reference - logp, times the ratio where one is given; [L], 0 at masked terms.

    inputs.before["reference"] holds the reference's log-probs. ratio_L: the differentiable importance ratio, before any upper
    bound (DeepSeek-V3.2's bias correction): on-policy the gradient becomes (logp - reference) grad logp, that of the reverse
    KL; without it, it is (1 - exp(d)) grad logp. Exact up to d = LOG_RATIO_LIMIT; above, the exponential and its slope stay at
    the limit's, so value and gradient are finite and keep their sign (http://joschu.net/blog/kl-approx.html for k3).
    """
    delta_L = inputs.where_active(inputs.before["reference"] - inputs.logp_L)
    kl_L = torch.expm1(capped(delta_L)) - delta_L
    return kl_L if ratio_L is None else kl_L * ratio_L
