"""REINFORCE++ (arXiv 2501.03262): KL by token in the reward, advantages normalised over all tokens of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlexp.advantages.batch import less_group_mean, to_the_end, whitened
from rlexp.algorithms.base import group_numbers, spread
from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.batching.terms import Terms
from rlexp.config.algorithms import ReinforcePPConfig
from rlexp.records.rollout import GenerationBatch, Group
from rlexp.records.sample import Sample

STD_OFFSET = 1e-8
"""added to the std of all advantages, which is 0 only when there is nothing to learn"""


class ReinforcePP(PolicyGradient):
    """A token's advantage is the reward less beta times the KL from it to the end (eq. 8), normalised over all trained tokens (eq. 10).

    baseline=group: the mean reward of the group is subtracted first (REINFORCE++ with baseline).
    """

    config: ReinforcePPConfig

    def idle(self, group: Group) -> bool:
        """Never: what a group's tokens get depends on the whole batch."""
        return False

    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """Before KL and normalisation."""
        return less_group_mean(rewards_R, group_R) if self.config.baseline == "group" else rewards_R

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """One for each token. A rollout's own, for the record, is the mean over its tokens."""
        self.log_coefficient(batch)
        x_L = spread(terms, self.values(self.clipped_rewards(batch), group_numbers(batch.groups), batch))
        if self.kl_in_reward:
            x_L = x_L - to_the_end(self.kl_penalty(batch, terms), terms.rollout_L)
        values_L = self.finished(whitened(np.where(terms.active_L, x_L, np.nan), STD_OFFSET))
        terms.advantage_L = values_L
        counts = np.maximum(np.bincount(terms.rollout_L, minlength=len(batch.rollouts)), 1)
        for rollout, value in zip(batch.rollouts, np.bincount(terms.rollout_L, values_L, len(batch.rollouts)) / counts, strict=True):
            rollout.advantage = float(value)
