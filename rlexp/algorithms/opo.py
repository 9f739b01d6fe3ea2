"""On-policy RL with optimal reward baseline (OPO, arXiv 2505.23585): the baseline is the length-weighted mean reward of the group."""

from __future__ import annotations

import numpy as np

from rlexp.advantages.optimal_baseline import optimal_baseline
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.records.rollout import GenerationBatch


class OPO(PolicyGradient):
    """The paper trains exactly on-policy: one step for each batch (trainer.steps_per_batch=1, algorithm.num_iterations=1), no KL, no entropy term."""

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """r - length-weighted mean of the group."""
        return optimal_baseline(rewards_R, [rollout.length for rollout in batch.rollouts], group_R)
