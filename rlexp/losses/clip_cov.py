"""Clip-Cov: a few tokens of high covariance get no gradient."""

from __future__ import annotations

from rlexp.config.losses import ClipCovLossConfig
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import importance_ratio


def clip_cov(inputs: LossInputs, config: ClipCovLossConfig) -> PolicyTerm:
    """Clip-Cov (arXiv 2505.22617): -r A for each term, 0 for the chosen ones (rlexp.losses.covariance); the ratio itself is not clipped.

    Denominator: N, the active tokens of the whole step, chosen ones too, as the paper's mean over tokens.
    """
    ratio_L = importance_ratio(inputs, "token")
    return PolicyTerm(-ratio_L * inputs.where_active(inputs.advantage_L) * (1 - inputs.extra["cov_chosen"]), ratio_L)
