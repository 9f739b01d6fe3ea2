"""Maximum likelihood reinforcement learning (MaxRL, arXiv 2602.02710): centred rewards divided by the mean of the group."""

from __future__ import annotations

import numpy as np

from rlexp.advantages.maximum_likelihood import maximum_likelihood
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.records.rollout import GenerationBatch


class MaxRL(PolicyGradient):
    """Hard tasks weigh more: the gradient approaches that of the log of the success rate as groups grow."""

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """(r - mean of the group) / mean of the group."""
        return maximum_likelihood(rewards_R, group_R)
