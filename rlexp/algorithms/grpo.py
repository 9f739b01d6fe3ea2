"""Group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300): the baseline of a rollout is the mean reward of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlexp.advantages.group_relative import group_relative
from rlexp.algorithms.base import Algorithm, Objective, group_numbers, spread
from rlexp.batching.terms import Terms
from rlexp.config.algorithm import GRPOConfig, LossConfig
from rlexp.losses.objective import PolicyObjective
from rlexp.records.rollout import GenerationBatch, Group
from rlexp.records.sample import Needs, Sample


class GRPO(Algorithm):
    """GRPO with any policy loss. A group whose rewards are all equal has advantage 0 everywhere; without a KL term it is idle."""

    def __init__(self, config: GRPOConfig, loss_config: LossConfig, loss: Callable[..., Any]) -> None:
        self.config, self.loss_config = config, loss_config
        self.mask_truncated = loss_config.mask_truncated_completions
        self._objective = PolicyObjective(loss, loss_config, beta=config.beta, use_bias_correction_kl=config.use_bias_correction_kl)
        self.needs = Needs(
            before=self._objective.before,
            columns={"policy": self._objective.columns},
            companions=frozenset({"reference"}) if config.beta else frozenset(),
        )

    def idle(self, group: Group) -> bool:
        """Equal rewards and no KL term: every term of the loss is zero."""
        return self.config.beta == 0 and group.flat

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """(r - mean of the group), scaled as algorithm.scale_rewards says."""
        rewards = np.array([rollout.reward for rollout in batch.rollouts])
        values = group_relative(rewards, group_numbers(batch.groups), self.config.scale_rewards)
        for rollout, value in zip(batch.rollouts, values, strict=True):
            rollout.advantage = float(value)
        terms.advantage_L = spread(terms, values)

    def reduction(self, model: str) -> str:
        """What the loss's dataclass states."""
        return self.loss_config.reduction

    def objective(self, model: str) -> Objective:
        """The policy loss and its KL term."""
        return self._objective
