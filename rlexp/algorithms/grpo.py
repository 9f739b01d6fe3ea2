"""Group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300): the baseline of a rollout is the mean reward of its group."""

from __future__ import annotations

import numpy as np

from rlexp.advantages.group_relative import group_relative
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.config.algorithm import GRPOConfig
from rlexp.records.rollout import GenerationBatch


class GRPO(PolicyGradient):
    """GRPO with any policy loss. A group whose rewards are all equal has advantage 0 everywhere; without a KL term it is idle."""

    config: GRPOConfig

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """(r - mean of the group), scaled as algorithm.scale_rewards says."""
        return group_relative(rewards_R, group_R, self.config.scale_rewards)
