"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740): the baseline of a rollout is the mean reward of the others of its group."""

from __future__ import annotations

import numpy as np

from rlexp.advantages.batch import whitened
from rlexp.advantages.group_relative import STD_OFFSET
from rlexp.advantages.leave_one_out import leave_one_out
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.config.algorithms import RLOOConfig
from rlexp.records.rollout import GenerationBatch


class RLOO(PolicyGradient):
    """Rewards clipped, less beta * KL of the rollout under the sampling policy (no gradient), leave-one-out, normalised over the batch if asked for."""

    config: RLOOConfig

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """A_i = r_i - mean of the other scored rewards of the group; normalize_advantages: over those that have an advantage."""
        values = leave_one_out(rewards_R, group_R)
        return whitened(values, STD_OFFSET) if self.config.normalize_advantages else values
