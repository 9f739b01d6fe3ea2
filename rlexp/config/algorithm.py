"""Groups `algorithm` and `loss`: the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional

from rlexp.config.fields import REQUIRED, option

KL_ESTIMATORS = ("k1", "k2", "k3", "abs")


@dataclass
class AlgorithmConfig:
    """What the loop reads of every algorithm."""

    name: str = option(REQUIRED, "The algorithm")
    num_generations: int = option(8, "Rollouts per task (G)", ge=2, fix="a group needs at least two rollouts to be compared")
    num_iterations: int = option(1, "Passes over each generation batch", ge=1)
    beta: float = option(0.0, "KL coefficient; 0 loads no reference model", ge=0)


@dataclass
class PolicyGradientConfig(AlgorithmConfig):
    """Options of every algorithm with one policy and one advantage per rollout."""

    reward_clip_range: Optional[List[float]] = option(None, "[lowest, highest] total reward, clipped before any KL and baseline; null: no clipping")
    advantage_clip: Optional[float] = option(None, "Advantages are clipped to -x .. x, last of all; null: no clipping", gt=0)
    kl_in: str = option("loss", "Where the KL goes: a term of the loss, or subtracted from each rollout's reward", choices=("loss", "reward"))
    kl_estimator: str = option("k3", "KL per token: k1 -d, k2 d^2/2, k3 exp(d) - d - 1, abs |d|; d is reference - policy", choices=KL_ESTIMATORS)
    kl_target: Optional[float] = option(None, "Let beta follow the metric kl so that it stays near this (Ziegler et al. 2019); null: beta is fixed", gt=0)
    kl_rate: float = option(0.1, "How fast the adaptive beta moves: at most a fifth of this share at each measurement", gt=0, le=1)
    sync_ref_model: bool = option(False, "Move the reference towards the policy every ref_model_sync_steps (TR-DPO, arXiv 2404.09656)")
    ref_model_mixup_alpha: float = option(0.6, "Share of the policy in the reference after a move; 1 resets the reference to the policy", gt=0, le=1)
    ref_model_sync_steps: int = option(512, "Optimizer steps from one move of the reference to the next", ge=1)
    use_bias_correction_kl: bool = option(
        True, "Multiply the KL term of the loss by the importance ratio (DeepSeek-V3.2), which makes its gradient unbiased; nothing with kl_in=reward"
    )


@dataclass
class GRPOConfig(PolicyGradientConfig):
    """Group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300)."""

    name: str = "grpo"
    scale_rewards: str = option(
        "group",
        "Divide centred rewards by the std of the group (or true), of the batch, or not at all (none or false)",
        choices=("group", "batch", "none"),
        aliases={"true": "group", "false": "none"},
    )
    multi_objective_aggregation: str = option(
        "sum_then_normalize",
        "Several rewards: weighted sum, then scale_rewards; or each normalised in its group, summed, normalised over the batch (GDPO), without scale_rewards",
        choices=("sum_then_normalize", "normalize_then_sum"),
    )


def ratio_level(default: str = "token") -> Any:
    """The field `importance_sampling_level` of a loss."""
    doc = "One ratio per token; their geometric mean per rollout (sequence, GSPO); or its value with each token's own gradient (sequence_token, GSPO-token)"
    return option(default, doc, choices=("token", "sequence", "sequence_token"))


@dataclass
class LossConfig:
    """What every policy loss has.

    reduction: how a term is scaled (rlexp.losses.reduction): tokens 1/N, rollout_mean 1/(B |o_i|), rollout_constant
    1/(B L_max), rollouts 1/B, micro_batch 1/(tokens of the micro-batch). level: the ratio level the loss is defined for; "" is any.
    takes_correction: the loss reads the weight of group correction itself (LossInputs.weight_L) instead of being multiplied by it.
    ratio_to_sampler: its ratio is to the sampler's probability, so a correction would count that twice. choice: how
    terms are chosen by covariance (CovarianceLossConfig), "" for losses that choose none.
    """

    takes_correction: ClassVar[bool] = False
    ratio_to_sampler: ClassVar[bool] = False
    choice: ClassVar[str] = ""
    reduction: ClassVar[str] = "tokens"
    level: ClassVar[str] = ""
    name: str = option(REQUIRED, "The loss")
    mask_truncated_completions: bool = option(False, "Leave completions that were cut off out of the loss; their reward still counts in the baseline")
    off_policy_mask_threshold: Optional[float] = option(
        None, "Leave out rollouts with negative advantage whose mean (sampler - policy) log-prob exceeds this (DeepSeek-V3.2: 0.5); null: none", gt=0
    )
    top_entropy_quantile: float = option(1.0, "Share of the tokens of a step, those of highest entropy, that the policy term keeps (80/20: 0.2)", ge=0, le=1)
    router_aux_loss_coef: Optional[float] = option(
        None, "Weight of the load-balancing loss of a mixture-of-experts model, 0 switches it off; null: the model config's", ge=0
    )
    entropy_coef: float = option(0.0, "Weight of the entropy bonus (mean over tokens, in nats); where it starts when adaptive")
    use_adaptive_entropy: bool = option(False, "Let entropy_coef follow the entropy (Skywork-OR1); the bonus is on while the entropy is at most the target")
    entropy_coef_min: float = option(0.0, "Smallest adaptive coefficient")
    entropy_coef_max: float = option(1.0, "Largest adaptive coefficient")
    entropy_coef_delta: float = option(0.005, "Change of the adaptive coefficient after each step", ge=0)
    entropy_target: float = option(0.2, "Entropy in nats at or below which the coefficient grows; set it near the first `entropy` of a run", ge=0)


@dataclass
class ClippedLossConfig(LossConfig):
    """Options of the PPO-clip family (grpo, bnpo, dr_grpo, dapo)."""

    epsilon: float = option(0.2, "Lower clip range of the ratio, and the upper one when epsilon_high is null; from 1 on nothing is clipped below", ge=0)
    epsilon_high: Optional[float] = option(None, "Upper clip range; null: epsilon", ge=0)
    delta: Optional[float] = option(None, "Upper bound of the ratio in the unclipped branch (INTELLECT-2); null: none", gt=0)
    importance_sampling_level: str = ratio_level()


@dataclass
class GRPOLossConfig(ClippedLossConfig):
    """Mean over rollouts of the mean over their tokens (DeepSeekMath, arXiv 2402.03300, eq. 3)."""

    reduction: ClassVar[str] = "rollout_mean"
    name: str = "grpo"


@dataclass
class BNPOLossConfig(ClippedLossConfig):
    """Mean over the tokens of each micro-batch; depends on how a step is split."""

    reduction: ClassVar[str] = "micro_batch"
    name: str = "bnpo"


@dataclass
class DrGRPOLossConfig(ClippedLossConfig):
    """Sum over tokens divided by rollouts x max_completion_length (Dr. GRPO, arXiv 2503.20783)."""

    reduction: ClassVar[str] = "rollout_constant"
    name: str = "dr_grpo"


@dataclass
class DAPOLossConfig(ClippedLossConfig):
    """Mean over all tokens of the step (DAPO, arXiv 2503.14476, eq. 12)."""

    reduction: ClassVar[str] = "tokens"
    name: str = "dapo"
