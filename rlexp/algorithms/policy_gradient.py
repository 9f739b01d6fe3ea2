"""What algorithms with one policy and one advantage per rollout share: rewards, KL, samples and the objective."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlexp.algorithms.base import Algorithm, Objective, group_numbers, spread
from rlexp.batching.terms import Terms
from rlexp.config.algorithm import LossConfig, PolicyGradientConfig
from rlexp.losses.objective import PolicyObjective
from rlexp.records.rollout import GenerationBatch, Group, Rollout
from rlexp.records.sample import Needs, Sample


class PolicyGradient(Algorithm):
    """A subclass says how rewards become advantages (`values`).

    The order is fixed: weighted total, clipped to reward_clip_range, minus beta * KL of the whole rollout (kl_in=reward), baseline and scale
    of the subclass, advantage_clip. A rollout without a reward has advantage 0.
    """

    def __init__(self, config: PolicyGradientConfig, loss_config: LossConfig, loss: Callable[..., Any]) -> None:
        self.config, self.loss_config = config, loss_config
        self.mask_truncated = loss_config.mask_truncated_completions
        self.kl_in_reward = bool(config.beta) and config.kl_in == "reward"
        in_loss = 0.0 if self.kl_in_reward else config.beta
        self._objective = PolicyObjective(loss, loss_config, beta=in_loss, use_bias_correction_kl=config.use_bias_correction_kl)
        self.needs = Needs(
            before=self._objective.before | (frozenset({"old", "reference"}) if self.kl_in_reward else frozenset()),
            columns={"policy": self._objective.columns},
            companions=frozenset({"reference"}) if config.beta else frozenset(),
        )

    @abstractmethod
    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """The advantage of each rollout, float64 [R]. rewards_R: NaN where nothing scored it; such an advantage may be NaN and counts as 0."""

    def idle(self, group: Group) -> bool:
        """Equal rewards and no KL: every term of the loss is zero."""
        return self.config.beta == 0 and group.flat

    def samples_of_rollout(self, rollout: Rollout, number: int) -> list[Sample]:
        """Under a ratio of whole rollouts, the samples of one go into one row."""
        samples = super().samples_of_rollout(rollout, number)
        level = getattr(self.loss_config, "importance_sampling_level", "token")
        if len(samples) > 1 and (self.loss_config.level or level) != "token":
            for sample in samples:
                sample.keep_together = number
        return samples

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """The same advantage for every term of a rollout."""
        values = self.values(self.rewards(batch, terms), group_numbers(batch.groups), batch)
        values = np.where(np.isnan(values), 0.0, values)
        if self.config.advantage_clip is not None:
            values = values.clip(-self.config.advantage_clip, self.config.advantage_clip)
        for rollout, value in zip(batch.rollouts, values, strict=True):
            rollout.advantage = float(value)
        terms.advantage_L = spread(terms, values)

    def rewards(self, batch: GenerationBatch, terms: Terms) -> np.ndarray:
        """What baselines are made of, float64 [R]: the total reward, clipped, less the KL of the rollout."""
        rewards = np.array([rollout.reward for rollout in batch.rollouts], dtype=np.float64)
        if self.config.reward_clip_range is not None:
            lowest, highest = self.config.reward_clip_range
            rewards = rewards.clip(lowest, highest)
        if self.kl_in_reward:
            rewards = rewards - self.config.beta * np.bincount(terms.rollout_L, self.kl(batch, terms), minlength=len(rewards))
        return rewards

    def kl(self, batch: GenerationBatch, terms: Terms) -> np.ndarray:
        """log pi_old - log pi_reference of each term, [L]: under the sampling policy, once per batch, without gradient. Logs its mean as `kl`."""
        kl_L = np.where(terms.active_L, terms.columns["old"] - terms.columns["reference"], 0.0)
        batch.metrics["kl"] = (float(kl_L.sum()), float(terms.active_L.sum()))
        return kl_L

    def reduction(self, model: str) -> str:
        """What the loss's dataclass states."""
        return self.loss_config.reduction

    def objective(self, model: str) -> Objective:
        """The policy loss and its KL term."""
        return self._objective
