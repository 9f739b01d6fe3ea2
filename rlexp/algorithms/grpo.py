"""Group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300): the baseline of a rollout is the mean reward of its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlexp.advantages.group_relative import group_relative
from rlexp.advantages.groups import is_flat
from rlexp.advantages.normalize_then_sum import normalize_then_sum
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.config.algorithm import GRPOConfig
from rlexp.records.rollout import GenerationBatch, Group, Rollout


class GRPO(PolicyGradient):
    """GRPO with any policy loss. A group whose rewards are all equal has advantage 0 everywhere; without a KL term it is idle."""

    config: GRPOConfig

    def idle(self, group: Group) -> bool:
        """normalize_then_sum: every single reward must be equal, two that cancel in the total still carry a signal."""
        if self.config.multi_objective_aggregation == "sum_then_normalize":
            return super().idle(group)
        return self.config.beta == 0 and all(is_flat(column) for column in self._table(group.rollouts).T)

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """(r - mean of the group), scaled as algorithm.scale_rewards says; or GDPO's."""
        if self.config.multi_objective_aggregation == "normalize_then_sum":
            return normalize_then_sum(self._table(batch.rollouts), list(self.reward_weights.values()), group_R)
        return group_relative(rewards_R, group_R, self.config.scale_rewards)

    def _table(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """The rewards of each term, float64 [R, K]; NaN for no score."""
        return np.array([[rollout.rewards.get(name) for name in self.reward_weights] for rollout in rollouts], dtype=np.float64)
