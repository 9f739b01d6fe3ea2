"""Group `reward`: several terms at once, each under reward.terms.<key>."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

from rlexp.config.fields import REQUIRED, option


@dataclass
class RewardTermConfig:
    """What every reward term has."""

    name: str = option(REQUIRED, "The reward function")
    weight: float = option(1.0, "Factor of this term in the total reward")
    special_tokens: bool = option(False, "Give the reward text with special tokens (the final EOS is always removed)")


@dataclass
class ExactMatchRewardConfig(RewardTermConfig):
    """1.0 if the completion, stripped, equals the answer column."""

    name: str = "exact_match"
    column: str = option("answer", "Column with the right answer")
    pattern: Optional[str] = option(None, "Regular expression whose first group is the answer inside the completion; no match scores 0")
    ignore_case: bool = option(False, "Compare without regard to case")


@dataclass
class ReasoningGymRewardConfig(RewardTermConfig):
    """The scorer of the reasoning-gym dataset the task came from."""

    name: str = "reasoning_gym"
    pattern: Optional[str] = option(None, "Regular expression whose first group is given to the scorer; no match gives the whole text")
    feedback: bool = option(False, "Log a column `feedback` for answers that do not score 1: what was answered and what is right (algorithm.feedback_column)")


@dataclass
class AccuracyRewardConfig(RewardTermConfig):
    """1.0 if math-verify finds the answer equal to the gold solution; no score when the gold cannot be parsed."""

    name: str = "accuracy"
    column: str = option("solution", "Column with the gold solution")


@dataclass
class ThinkFormatRewardConfig(RewardTermConfig):
    """1.0 if the text starts with one think block that is closed, counting a block that the prompt opened."""

    name: str = "think_format"


@dataclass
class OverlongRewardConfig(RewardTermConfig):
    """Soft overlong penalty (DAPO, arXiv 2503.14476, eq. 13): 0 up to max_length - buffer, then linear to -1."""

    name: str = "overlong"
    max_length: Optional[int] = option(None, "Length with full penalty, in tokens; null: rollout.max_completion_length", ge=1)
    buffer: int = option(64, "Tokens over which the penalty grows", ge=1)


@dataclass
class ModelRewardConfig(RewardTermConfig):
    """The score of a trained reward model: a sequence-classification model with one label."""

    name: str = "model"
    path: str = option(REQUIRED, "Hub id or local folder of the reward model")
    revision: Optional[str] = option(None, "Branch, tag or commit of the model and its tokenizer")
    tokenizer: Optional[str] = option(None, "Hub id or folder of its tokenizer; null: the model's own")
    trust_remote_code: bool = option(False, "Run code that the model repository ships")
    batch_size: int = option(32, "Completions scored at once", ge=1)


@dataclass
class CustomRewardConfig(RewardTermConfig):
    """A function of yours, by path: my_rewards.py:function or package.module:function."""

    name: str = "custom"
    path: str = option(REQUIRED, "Where the function is, e.g. reward.terms.custom.path=my_rewards.py:length")
    kwargs: Dict[str, Any] = option({}, "Keyword arguments bound to the function, e.g. '{cap: 3}'")


@dataclass
class RewardConfig:
    """The reward terms and how their failures are treated.

    terms holds a RewardTermConfig each; Any, because Hydra would refuse a term given as a plain dict.
    """

    terms: Dict[str, Any] = option({}, "The reward terms, chosen by reward=[a,b]; another: '+reward.terms.KEY={name: custom, path: my.py:f}'")
    timeout: float = option(60.0, "Seconds one call of a reward may take", gt=0)
    overlap: bool = option(
        False, "Score the rollouts of each task as soon as they are complete, while others are still sampled; a reward then sees one task at each call"
    )
    on_error: str = option("stop", "When a reward raises or is late: stop the run, score None, or score reward.error_value", choices=("stop", "none", "value"))
    error_value: float = option(0.0, "The score of a failed call when reward.on_error=value")
