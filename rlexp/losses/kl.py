"""KL divergence to the reference model, estimated per token, and its coefficient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rlexp.losses.inputs import LossInputs
from rlexp.losses.ratio import capped

ERROR_LIMIT = 0.2
"""the adaptive coefficient reacts to a relative error of at most this (Ziegler et al. 2019)"""


def estimate(delta: Tensor, estimator: str) -> Tensor:
    """KL(policy, reference) of tokens sampled from the policy. delta: reference - policy log-prob, any shape.

    Schulman's estimators (http://joschu.net/blog/kl-approx.html): k1 -d, unbiased, of any sign; k2 d^2 / 2, biased, its gradient is that of
    the reverse KL; k3 exp(d) - d - 1, unbiased, never negative; abs |d|. k3 is exact up to d = LOG_RATIO_LIMIT; above, the exponential and
    its slope stay at the limit's, so value and gradient are finite and keep their sign.
    """
    if estimator == "k1":
        return -delta
    if estimator == "k2":
        return 0.5 * delta.square()
    if estimator == "k3":
        return torch.expm1(capped(delta)) - delta
    if estimator == "abs":
        return delta.abs()
    raise ValueError(f"unknown KL estimator {estimator!r}: k1, k2, k3 or abs")


def kl_term(inputs: LossInputs, estimator: str = "k3", ratio_L: Tensor | None = None) -> Tensor:
    """The estimate, times the ratio where one is given; [L], 0 at masked terms, with gradient.

    inputs.before["reference"] holds the reference's log-probs. ratio_L: the differentiable importance ratio, before any upper bound
    (DeepSeek-V3.2's bias correction): on-policy the gradient of k1 and k3 becomes, in the mean, that of the reverse KL; without it k3's is
    (1 - exp(d)) grad logp, and k1's is 0 in the mean.
    """
    kl_L = estimate(inputs.where_active(inputs.before["reference"] - inputs.logp_L), estimator)
    return kl_L if ratio_L is None else kl_L * ratio_L


class KLController:
    """The KL coefficient: fixed, or adaptive as in Ziegler et al. 2019 (arXiv 1909.08593, section 2.2).

    beta <- beta * (1 + rate * clip((KL - target) / target, -0.2, 0.2)) after each measurement. target: of the metric `kl`; None keeps beta fixed.
    """

    def __init__(self, beta: float, target: float | None, rate: float) -> None:
        self.beta, self.target, self.rate = beta, target, rate

    def update(self, kl: float) -> None:
        """Take in a measured KL, the same number on every rank; NaN (nothing measured) changes nothing."""
        if self.target is not None and not math.isnan(kl):
            error = min(max(kl / self.target - 1.0, -ERROR_LIMIT), ERROR_LIMIT)
            self.beta *= 1.0 + self.rate * error

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave; a fixed coefficient is the config's."""
        if self.target is not None:
            self.beta = state["beta"]
