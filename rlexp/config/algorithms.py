"""Group `algorithm` beyond GRPO, one dataclass each, and the loss that only RLOO's paper has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional

from rlexp.config.algorithm import LossConfig, PolicyGradientConfig
from rlexp.config.fields import option


@dataclass
class RLOOConfig(PolicyGradientConfig):
    """REINFORCE leave-one-out (arXiv 2402.14740): the baseline of a rollout is the mean reward of the others, the KL is part of the reward."""

    name: str = "rloo"
    num_generations: int = option(2, "Rollouts per task (G)", ge=2, fix="a group needs at least two rollouts to be compared")
    beta: float = option(0.05, "KL coefficient; 0 loads no reference model", ge=0)
    kl_in: str = option("reward", "Where the KL goes: subtracted from each rollout's reward (the paper), or a term of the loss", choices=("loss", "reward"))
    normalize_advantages: bool = option(False, "Bring the advantages of each generation batch to mean 0 and std 1")


@dataclass
class RLOOLossConfig(LossConfig):
    """Clipped REINFORCE with one ratio per rollout, the product over its tokens (arXiv 2402.14740)."""

    reduction: ClassVar[str] = "rollout_mean"
    level: ClassVar[str] = "sequence_product"
    name: str = "rloo"
    epsilon: float = option(0.2, "Lower clip range of the ratio, and the upper one when epsilon_high is null", ge=0, lt=1)
    epsilon_high: Optional[float] = option(None, "Upper clip range; null: epsilon", ge=0)
