"""What algorithms with one policy and one advantage per rollout share: rewards, KL, samples and the objective."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rlexp.algorithms.base import Algorithm, Objective, group_numbers, spread
from rlexp.batching.terms import Terms
from rlexp.config.algorithm import LossConfig, PolicyGradientConfig
from rlexp.config.losses import CovarianceLossConfig
from rlexp.losses.correction import Correction
from rlexp.losses.covariance import chosen_terms, covariances
from rlexp.losses.entropy import high_entropy, mean_scale
from rlexp.losses.kl import KLController, estimate
from rlexp.losses.objective import PolicyObjective
from rlexp.records.keys import generator
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
        self.kl_coef = KLController(config.beta, config.kl_target, config.kl_rate)
        in_loss = 0.0 if self.kl_in_reward else config.beta
        bias_correction = config.use_bias_correction_kl
        self._objective = PolicyObjective(loss, loss_config, beta=in_loss, kl_estimator=config.kl_estimator, use_bias_correction_kl=bias_correction)
        if config.sync_ref_model:
            self.companion_moves = {"reference": (config.ref_model_mixup_alpha, config.ref_model_sync_steps)}
        self.needs_every_group = self._objective.needs_every_term
        self._find_needs()

    def _find_needs(self) -> None:
        self.needs = Needs(
            before=self._objective.before | (frozenset({"old", "reference"}) if self.kl_in_reward else frozenset()),
            columns={"policy": self._objective.columns},
            companions=frozenset({"reference"}) if self.config.beta else frozenset(),
        )

    def use_correction(self, correction: Correction) -> None:
        """Its weights multiply the policy term, or enter the loss where that takes them itself."""
        self._objective.correction = correction
        self._find_needs()

    def use_router(self, coef: float) -> None:
        """The loss of the routers is one over all tokens, those of groups without signal too."""
        self._objective.router_coef = coef
        self.needs_every_group = self._objective.needs_every_term
        self._find_needs()

    @abstractmethod
    def values(self, rewards_R: np.ndarray, group_R: np.ndarray, batch: GenerationBatch) -> np.ndarray:
        """The advantage of each rollout, float64 [R]. rewards_R: NaN where nothing scored it; such an advantage may be NaN and counts as 0."""

    def idle(self, group: Group) -> bool:
        """Equal rewards and no KL: every term of the loss is zero."""
        return self.config.beta == 0 and group.flat

    def samples_of_rollout(self, rollout: Rollout, number: int) -> list[Sample]:
        """Under a ratio, mask or weight of whole rollouts, the samples of one go into one row."""
        samples = super().samples_of_rollout(rollout, number)
        if len(samples) > 1 and self._objective.per_rollout:
            for sample in samples:
                sample.keep_together = number
        return samples

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """The same advantage for every term of a rollout."""
        self.log_coefficient(batch)
        rewards = self.clipped_rewards(batch)
        if self.kl_in_reward:
            rewards = rewards - np.bincount(terms.rollout_L, self.kl_penalty(batch, terms), minlength=len(rewards))
        values = self.finished(self.values(rewards, group_numbers(batch.groups), batch))
        for rollout, value in zip(batch.rollouts, values, strict=True):
            rollout.advantage = float(value)
        terms.advantage_L = spread(terms, values)

    def clipped_rewards(self, batch: GenerationBatch) -> np.ndarray:
        """The total rewards, clipped, float64 [R]; NaN where nothing scored the rollout."""
        return self.clipped(np.array([rollout.reward for rollout in batch.rollouts], dtype=np.float64))

    def clipped(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards within reward_clip_range; NaN stays."""
        if self.config.reward_clip_range is None:
            return rewards
        lowest, highest = self.config.reward_clip_range
        return rewards.clip(lowest, highest)

    def finished(self, values: np.ndarray) -> np.ndarray:
        """Advantages with 0 for what has none, clipped to advantage_clip."""
        values = np.where(np.isnan(values), 0.0, values)
        limit = self.config.advantage_clip
        return values if limit is None else values.clip(-limit, limit)

    def log_coefficient(self, batch: GenerationBatch) -> None:
        """The adaptive beta as it is now, at the beginning of the batch."""
        if self.config.kl_target is not None:
            batch.metrics["kl_coef"] = (self.kl_coef.beta, 1.0)

    def kl_penalty(self, batch: GenerationBatch, terms: Terms) -> np.ndarray:
        """beta times the KL of each term, [L]: under the sampling policy, once per batch, without gradient. Logs the mean KL as `kl`."""
        delta_L = np.where(terms.active_L, terms.columns["reference"] - terms.columns["old"], 0.0)
        kl_L = estimate(torch.from_numpy(delta_L), self.config.kl_estimator).numpy()
        total, count, beta = float(kl_L.sum()), float(terms.active_L.sum()), self.kl_coef.beta
        batch.metrics["kl"] = (total, count)
        self.kl_coef.update(total / count if count else np.nan)
        return beta * kl_L

    def masks(self, batch: GenerationBatch, terms: Terms) -> None:
        """Which terms the policy term and the entropy bonus keep, the scale that makes the bonus a mean over them, and those chosen by covariance."""
        if isinstance(self.loss_config, CovarianceLossConfig):
            cov_L = covariances(terms.columns["old"], terms.advantage_L, terms.active_L, terms.step_L)
            draw_L = generator(self.seed, "covariance", batch.step_hint).random(terms.count)
            chosen_L = chosen_terms(self.loss_config, cov_L, terms.active_L, terms.step_L, draw_L)
            terms.extra["cov_chosen"] = chosen_L.astype(np.float64)
        if not self._objective.uses_entropy:
            return
        keep_L, top = terms.active_L, self.loss_config.top_entropy_quantile
        if top < 1:
            keep_L = high_entropy(terms.columns["entropy"], terms.active_L, terms.step_L, top)
        terms.extra["entropy_keep"], terms.extra["entropy_scale"] = keep_L.astype(np.float64), mean_scale(keep_L, terms.step_L)

    def after_step(self, totals: dict[str, float]) -> None:
        """The entropy's coefficient follows the step's entropy, that of a KL in the loss follows the step's KL."""
        self._objective.entropy.update(totals.get("entropy_kept", np.nan))
        if self._objective.beta:
            self.kl_coef.update(totals.get("kl", np.nan))
            self._objective.beta = self.kl_coef.beta

    def state_dict(self) -> dict[str, Any]:
        """The coefficients of entropy and KL."""
        return {"entropy": self._objective.entropy.state_dict(), "kl": self.kl_coef.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""
        self._objective.entropy.load_state_dict(state["entropy"])
        self.kl_coef.load_state_dict(state["kl"])
        if self._objective.beta:
            self._objective.beta = self.kl_coef.beta

    def reduction(self, model: str) -> str:
        """What the loss's dataclass states."""
        return self.loss_config.reduction

    def objective(self, model: str) -> Objective:
        """The policy loss and its KL term."""
        return self._objective
