"""Group `loss` beyond the PPO-clip family: weights that are bounded, gated or shaped instead of clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Optional

from rlexp.config.algorithm import ClippedLossConfig, LossConfig, ratio_level
from rlexp.config.fields import option


@dataclass
class CISPOLossConfig(LossConfig):
    """REINFORCE with a bounded importance weight, mean over all tokens (CISPO, MiniMax-M1, arXiv 2506.13585)."""

    reduction: ClassVar[str] = "tokens"
    name: str = "cispo"
    epsilon_high: float = option(5.0, "Upper bound of the importance weight itself, not of its distance to 1 (ScaleRL)", gt=0)
    importance_sampling_level: str = ratio_level()


@dataclass
class SAPOLossConfig(LossConfig):
    """A smooth gate instead of a clip, mean over rollouts of the mean over their tokens (SAPO, arXiv 2511.20347)."""

    reduction: ClassVar[str] = "rollout_mean"
    name: str = "sapo"
    sapo_temperature_pos: float = option(1.0, "Temperature of the gate where the advantage is positive", gt=0)
    sapo_temperature_neg: float = option(1.05, "Temperature of the gate elsewhere; larger fades faster", gt=0)
    importance_sampling_level: str = ratio_level()


@dataclass
class LUSPOLossConfig(ClippedLossConfig):
    """Sequence ratios with each rollout weighted by its length: sum over tokens divided by rollouts (LUSPO, arXiv 2602.05261)."""

    reduction: ClassVar[str] = "rollouts"
    level: ClassVar[str] = "sequence"
    name: str = "luspo"
    importance_sampling_level: str = ratio_level("sequence")


@dataclass
class VESPOLossConfig(LossConfig):
    """REINFORCE weighted by a gamma-shaped function of the whole rollout's ratio, mean over all tokens (VESPO, arXiv 2602.10693)."""

    reduction: ClassVar[str] = "tokens"
    level: ClassVar[str] = "sequence"
    takes_correction: ClassVar[bool] = True
    name: str = "vespo"
    vespo_k_pos: float = option(2.0, "Power of the ratio where the advantage is not negative: damps ratios below 1", ge=0)
    vespo_lambda_pos: float = option(3.0, "Exponential decay there: damps ratios above 1", ge=1e-4)
    vespo_k_neg: float = option(3.0, "Power of the ratio where the advantage is negative", ge=0)
    vespo_lambda_neg: float = option(2.0, "Exponential decay there", ge=1e-4)


@dataclass
class GMPOLossConfig(LossConfig):
    """The geometric mean of the tokens' clipped ratios, mean over rollouts (GMPO, arXiv 2507.20673)."""

    reduction: ClassVar[str] = "rollout_mean"
    level: ClassVar[str] = "sequence"
    name: str = "gmpo"
    log_epsilon: float = option(0.4, "A token's log-ratio is clipped to -x .. x, as far as its advantage pushes it there", ge=0)
    log_epsilon_high: Optional[float] = option(None, "Upper bound of the log-ratio; null: log_epsilon", ge=0)


@dataclass
class DPPOLossConfig(LossConfig):
    """Policy gradient that masks tokens whose probability moved too far from the sampler's, mean over all tokens (DPPO, arXiv 2602.04879)."""

    reduction: ClassVar[str] = "tokens"
    ratio_to_sampler: ClassVar[bool] = True
    name: str = "dppo"
    delta_low: float = option(
        0.15, "Largest fall of a token's probability (total variation) with negative advantage, and largest rise when delta_high is null", gt=0, le=1
    )
    delta_high: Optional[float] = option(None, "Largest rise of a token's probability with positive advantage; null: delta_low", gt=0, le=1)


@dataclass
class CovarianceLossConfig(LossConfig):
    """What the losses that treat tokens of high covariance apart share (arXiv 2505.22617).

    choice: how they are chosen, random among those within the bounds, or those with the top covariance.
    """

    reduction: ClassVar[str] = "tokens"
    choice: ClassVar[str] = "random"
    cov_share: float = option(2e-4, "Share of a step's tokens that are treated apart, at least one", gt=0, le=1)

    @property
    def cov_bounds(self) -> tuple[float, float]:
        """Covariances that are eligible."""
        return -math.inf, math.inf


@dataclass
class ClipCovLossConfig(CovarianceLossConfig):
    """A few random tokens of high covariance between log-prob and advantage get no gradient (Clip-Cov, arXiv 2505.22617)."""

    name: str = "clip_cov"
    cov_low: float = option(1.0, "A token is eligible above this covariance")
    cov_high: float = option(5.0, "and below this one")

    @property
    def cov_bounds(self) -> tuple[float, float]:
        """Covariances that are eligible."""
        return self.cov_low, self.cov_high


@dataclass
class KLCovLossConfig(CovarianceLossConfig):
    """The tokens of highest covariance between log-prob and advantage are held near the old policy (KL-Cov, arXiv 2505.22617)."""

    choice: ClassVar[str] = "top"
    name: str = "kl_cov"
    cov_share: float = option(2e-3, "Share of a step's tokens that are treated apart, at least one", gt=0, le=1)
    cov_kl_coef: float = option(1.0, "Weight of their KL to the old policy", ge=0)
