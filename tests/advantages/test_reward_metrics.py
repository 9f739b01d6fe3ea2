"""Metrics of a generation batch's rewards."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.advantages.metrics import reward_metrics
from rlexp.advantages.total import weighted_total


@pytest.mark.rows("GRPO-219", "GRPO-220", "GRPO-221", "GRPO-222")
@pytest.mark.cases("S06")
def test_the_logged_reward_is_the_weighted_one():
    rewards = [[1, 0], [0, 1], [1, 1], [1, 0]]
    metrics = reward_metrics(rewards, ["f", "g"], weighted_total(rewards, [0.7, 0.3]), [0] * 4)
    assert metrics["reward"] == pytest.approx(0.675)
    assert metrics["reward_std"] == pytest.approx(0.287228, abs=1e-6)
    assert (metrics["rewards/f/mean"], metrics["rewards/g/mean"]) == (0.75, 0.5)
    assert (metrics["rewards/f/std"], metrics["rewards/g/std"]) == pytest.approx((0.5, 0.577350), abs=1e-6)
    assert metrics["frac_reward_zero_std"] == 0.0


@pytest.mark.rows("GRPO-219", "GRPO-220", "GRPO-221", "GRPO-222", "GRPO-223")
@pytest.mark.cases("S01")
def test_missing_rewards_leave_every_metric_finite():
    rewards = [[1, None, None], [None, None, None], [0, 1, None], [None] * 3, [None] * 3, [None] * 3, [0.4, None, None], [None] * 3]
    metrics = reward_metrics(rewards, ["f", "g", "h"], weighted_total(rewards, [1, 0.5, 1]), [0] * 4 + [1] * 4)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["frac_reward_zero_std"] == 0.5
    assert metrics["reward"] == pytest.approx((1.0 + 0.5 + 0.4) / 3)
    assert metrics["rewards/f/mean"] == pytest.approx(1.4 / 3)
    assert (metrics["rewards/g/mean"], metrics["rewards/g/std"]) == (1.0, 0.0)
    assert not any(name.startswith("rewards/h/") for name in metrics)


@pytest.mark.rows("GRPO-223")
@pytest.mark.cases("S05")
def test_the_share_of_rollouts_in_flat_groups():
    assert reward_metrics([[1], [0], [1], [0]], ["f"], [1, 0, 1, 0], [1, 2, 1, 2])["frac_reward_zero_std"] == 1.0
    # By rollouts, not by groups: three of five are in flat groups.
    assert reward_metrics([[1], [1], [1], [1], [0]], ["f"], [1, 1, 1, 1, 0], [3, 3, 3, 8, 8])["frac_reward_zero_std"] == 0.6


def test_equal_floats_have_no_spread():
    metrics = reward_metrics([[0.1]] * 7, ["f"], [0.1] * 7, [0] * 7)
    assert (metrics["reward_std"], metrics["rewards/f/std"], metrics["frac_reward_zero_std"]) == (0.0, 0.0, 1.0)


def test_a_batch_without_any_score():
    assert reward_metrics([[None]] * 2, ["f"], [np.nan] * 2, [0, 0]) == {"frac_reward_zero_std": 1.0}
