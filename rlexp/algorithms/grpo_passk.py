"""Pass@k training (arXiv 2508.10751): the objective is that one of k rollouts is right."""

from __future__ import annotations

import numpy as np

from rlexp.advantages.pass_at_k import pass_at_k_advantages
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.config.algorithms import GRPOPassKConfig
from rlexp.records.rollout import GenerationBatch


class GRPOPassK(PolicyGradient):
    """GRPO over all sets of k rollouts of a group, in closed form."""

    config: GRPOPassKConfig

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """A rollout is right if its total reward is at least algorithm.correct_reward."""
        correct = np.where(np.isnan(rewards_R), np.nan, (rewards_R >= self.config.correct_reward).astype(np.float64))
        return pass_at_k_advantages(correct, group_R, self.config.k)
