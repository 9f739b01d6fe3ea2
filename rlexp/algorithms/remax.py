"""ReMax (arXiv 2310.10505): the baseline of a task is the reward of its greedy rollout."""

from __future__ import annotations

import numpy as np

from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.records.rollout import GenerationBatch, Group


class ReMax(PolicyGradient):
    """One more rollout per task, decoded greedily and not trained on, takes the place of a critic: it does not depend on what was sampled, so the
    gradient stays unbiased, also with one sampled rollout per task (algorithm 2 of the paper)."""

    greedy_baseline = True

    def idle(self, group: Group) -> bool:
        """Every reward is that of the greedy rollout, or there is nothing to compare."""
        gains = (rollout.reward - group.baseline for rollout in group.rollouts)
        return self.config.beta == 0 and all(gain == 0 or np.isnan(gain) for gain in gains)

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """r - reward of the greedy rollout (clipped like r); no advantage where either was not scored."""
        return rewards_R - self.clipped(np.array([group.baseline for group in batch.groups], dtype=np.float64))[group_R]
