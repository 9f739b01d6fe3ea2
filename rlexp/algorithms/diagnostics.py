"""Metrics of self-distillation over a generation batch, and warnings of batches that teach nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from rlexp.algorithms.hints import Hint, success
from rlexp.config.sdpo import SDPOConfig
from rlexp.records.rollout import GenerationBatch

log = logging.getLogger(__name__)

PREFIX = "self_distillation"
SAYINGS = {
    "flat_rewards": "the rewards of all rollouts are equal, so the policy loss has no signal: check the reward, or give tasks of another difficulty",
    "inactive": "no rollout has a prompt for the teacher, so nothing is distilled: no rollout of a group with failures reached "
    "algorithm.success_reward_threshold={threshold:g}, and there is no feedback",
    "no_success": "no rollout reached algorithm.success_reward_threshold={threshold:g}: lower it, shape the reward, or give easier tasks",
}
"""state -> what the warning says"""


def batch_numbers(batch: GenerationBatch, shown: Sequence[Hint], config: SDPOConfig) -> dict[str, float]:
    """The metrics by name without prefix. Rewards are weighted totals of the scored rollouts, deviations have n - 1."""
    rollouts = batch.rollouts
    rewards = np.array([rollout.reward for rollout in rollouts if not math.isnan(rollout.reward)])
    spreads = [_std([rollout.reward for rollout in group.rollouts if not math.isnan(rollout.reward)]) for group in batch.groups]
    everywhere = config.teacher_context == "prompt"
    numbers = {
        "success_group_fraction": _mean([any(success(rollout, config) for rollout in group.rollouts) for group in batch.groups]),
        "success_sample_fraction": _mean([hint.solution is not None for hint in shown]),
        "feedback_available_fraction": _mean([hint.available for hint in shown]),
        "feedback_used_fraction": _mean([hint.feedback is not None for hint in shown]),
        "reprompt_sample_fraction": _mean([everywhere or hint.active for hint in shown]),
        "reward_mean": _mean(rewards),
        "reward_std": _std(rewards),
        "reward_min": float(rewards.min(initial=math.inf)) if len(rewards) else math.nan,
        "reward_max": float(rewards.max(initial=-math.inf)) if len(rewards) else math.nan,
        "group_reward_std_mean": _mean(spreads),
        "flat_group_fraction": _mean([spread <= config.diagnostics_flat_tolerance for spread in spreads]),
    }
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.rewards):
        scored = [value for rollout in rollouts if (value := rollout.rewards.get(name)) is not None]
        if scored:
            numbers[f"rewards/{name}"] = _mean(scored)
    return numbers


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _std(values: Sequence[float] | np.ndarray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


class Diagnostics:
    """Counts batches in a row that are in a state that teaches nothing, and warns of the first and of every `interval`-th of them."""

    def __init__(self, config: SDPOConfig) -> None:
        self.config = config
        self.counts = dict.fromkeys(SAYINGS, 0)

    def take(self, numbers: dict[str, float]) -> None:
        """The numbers of a batch (batch_numbers). A healthy batch sets a count back to 0."""
        tolerance = self.config.diagnostics_flat_tolerance
        states = {
            "flat_rewards": numbers["reward_std"] <= tolerance and numbers["flat_group_fraction"] >= 1.0 - tolerance,
            "inactive": numbers["reprompt_sample_fraction"] <= tolerance,
            "no_success": numbers["success_group_fraction"] <= tolerance,
        }
        interval = self.config.diagnostics_warning_interval
        for name, found in states.items():
            self.counts[name] = self.counts[name] + 1 if found else 0
            count = self.counts[name]
            if interval and count and (count == 1 or count % interval == 0):
                log.warning("%s (batches in a row: %d)", SAYINGS[name].format(threshold=self.config.success_reward_threshold), count)
