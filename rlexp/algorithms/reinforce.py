"""REINFORCE (Williams 1992): the reward itself, or relative to the mean of the batch."""

from __future__ import annotations

import numpy as np

from rlexp.advantages.batch import less_batch_mean
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.config.algorithms import ReinforceConfig
from rlexp.records.rollout import GenerationBatch, Group


class Reinforce(PolicyGradient):
    """Groups play no role, so a group with equal rewards is as good as any other."""

    config: ReinforceConfig

    def idle(self, group: Group) -> bool:
        """Never: the baseline is not the group's own."""
        return False

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """r - mean of the batch, or r."""
        return less_batch_mean(rewards_R) if self.config.baseline == "batch" else rewards_R
