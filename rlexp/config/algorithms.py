"""Group `algorithm` beyond GRPO, one dataclass each, and the loss that only RLOO's paper has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional

from rlexp.config.algorithm import KL_ESTIMATORS, LossConfig, PolicyGradientConfig
from rlexp.config.fields import option


@dataclass
class RLOOConfig(PolicyGradientConfig):
    """REINFORCE leave-one-out (arXiv 2402.14740): the baseline of a rollout is the mean reward of the others, the KL is part of the reward."""

    name: str = "rloo"
    num_generations: int = option(2, "Rollouts per task (G)", ge=2, fix="a group needs at least two rollouts to be compared")
    beta: float = option(0.05, "KL coefficient; 0 loads no reference model", ge=0)
    kl_in: str = option("reward", "Where the KL goes: subtracted from each rollout's reward (the paper), or a term of the loss", choices=("loss", "reward"))
    kl_estimator: str = option("k1", "Estimator of the KL per token (k1 is the paper's); see algorithm=grpo", choices=KL_ESTIMATORS)
    normalize_advantages: bool = option(False, "Bring the advantages of each generation batch to mean 0 and std 1")


@dataclass
class RLOOLossConfig(LossConfig):
    """Clipped REINFORCE with one ratio per rollout, the product over its tokens (arXiv 2402.14740)."""

    reduction: ClassVar[str] = "rollout_mean"
    level: ClassVar[str] = "sequence_product"
    name: str = "rloo"
    epsilon: float = option(0.2, "Lower clip range of the ratio, and the upper one when epsilon_high is null; from 1 on nothing is clipped below", ge=0)
    epsilon_high: Optional[float] = option(None, "Upper clip range; null: epsilon", ge=0)


@dataclass
class ReinforceConfig(PolicyGradientConfig):
    """REINFORCE (Williams 1992), with the mean reward of the batch as baseline."""

    name: str = "reinforce"
    num_generations: int = option(8, "Rollouts per task (G); they are not compared, so 1 is enough", ge=1)
    baseline: str = option("batch", "What is subtracted from a reward: the mean of the batch, or nothing", choices=("batch", "none"))


@dataclass
class ReinforcePPConfig(PolicyGradientConfig):
    """REINFORCE++ (arXiv 2501.03262): KL by token in the reward, advantages normalised over all tokens of the batch."""

    name: str = "reinforce_pp"
    num_generations: int = option(8, "Rollouts per task (G)", ge=1)
    kl_in: str = option("reward", "Where the KL goes: subtracted from each token's reward (the paper), or a term of the loss", choices=("loss", "reward"))
    kl_estimator: str = option("k1", "Estimator of the KL per token (k1 is the paper's); see algorithm=grpo", choices=KL_ESTIMATORS)
    baseline: str = option("none", "Subtracted before the normalisation: nothing, or the mean reward of the group", choices=("none", "group"))


@dataclass
class OPOConfig(PolicyGradientConfig):
    """On-policy RL with optimal reward baseline (arXiv 2505.23585): the length-weighted mean reward of the group."""

    name: str = "opo"


@dataclass
class MaxRLConfig(PolicyGradientConfig):
    """Maximum likelihood RL (arXiv 2602.02710): centred rewards divided by the mean of the group. Rewards must not be negative."""

    name: str = "maxrl"
    kl_in: str = option("loss", "Where the KL goes: a term of the loss (in the reward it would make rewards negative)", choices=("loss",))


@dataclass
class GRPOPassKConfig(PolicyGradientConfig):
    """Pass@k training (arXiv 2508.10751): GRPO over all sets of k rollouts of a group."""

    name: str = "grpo_passk"
    k: int = option(2, "Rollouts in a set, one of which must be right; at most num_generations (the paper: 8 of 16 or 32)", ge=1)
    correct_reward: float = option(1.0, "Smallest total reward of a right rollout")
    kl_in: str = option("loss", "Where the KL goes: a term of the loss (right and wrong know no KL)", choices=("loss",))


@dataclass
class ReMaxConfig(PolicyGradientConfig):
    """ReMax (arXiv 2310.10505): the baseline is the reward of a greedy rollout of the same task."""

    name: str = "remax"
    num_generations: int = option(8, "Sampled rollouts per task (G); 1 is enough (the paper's), the greedy one comes on top", ge=1)
