"""KL-Cov: the tokens of highest covariance are held near the old policy."""

from __future__ import annotations

from rlexp.config.losses import KLCovLossConfig
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import importance_ratio


def kl_cov(inputs: LossInputs, config: KLCovLossConfig) -> PolicyTerm:
    """KL-Cov (arXiv 2505.22617): -r A for each term, plus cov_kl_coef KL(old, policy) for the chosen ones (rlexp.losses.covariance).

    The KL of one token is estimated by |log r|, as the authors' code does; its gradient is 0 at r = 1, so the first step of a batch is not
    changed. Denominator: N, the active tokens of the whole step.
    """
    ratio_L = importance_ratio(inputs, "token")
    gap_L = inputs.where_active(inputs.logp_L - inputs.old_logp_L).abs()
    return PolicyTerm(-ratio_L * inputs.where_active(inputs.advantage_L) + config.cov_kl_coef * inputs.extra["cov_chosen"] * gap_L, ratio_L)
