"""Leave-one-out baselines: hand numbers, a literal double loop, and every way a reward can be missing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.advantages.batch import whitened
from rlexp.advantages.leave_one_out import leave_one_out

NAN = math.nan


def literal(totals, groups):
    """One rollout at a time, straight from the formula; None: no advantage."""
    out = []
    for i, reward in enumerate(totals):
        others = [r for j, (r, g) in enumerate(zip(totals, groups, strict=True)) if j != i and g == groups[i] and not math.isnan(r)]
        out.append(None if math.isnan(reward) or not others else reward - sum(others) / len(others))
    return out


def literal_normalized(values):
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    std = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1)) if len(known) > 1 else 0.0
    return [None if value is None else (value - mean) / (std + 1e-4) for value in values]


def with_none(values):
    return [None if math.isnan(value) else value for value in values.tolist()]


@pytest.mark.rows("RLOO-003", "RLOO-011", "RLOO-013")
@pytest.mark.cases("S02")
def test_equals_a_literal_double_loop_on_ragged_groups():
    rng = np.random.default_rng(5)
    for _ in range(200):
        sizes = rng.integers(1, 6, rng.integers(1, 5))
        groups = np.repeat(rng.permutation(len(sizes)) * 7 - 9, sizes)
        order = rng.permutation(len(groups))
        totals = np.where(rng.random(len(groups)) < 0.25, np.nan, rng.choice([0.0, 0.1, 1.0, rng.normal()], len(groups)))[order]
        groups = groups[order]
        values = leave_one_out(totals, groups)
        expected = literal(totals.tolist(), groups.tolist())
        assert with_none(values) == [None if value is None else pytest.approx(value, abs=1e-12) for value in expected]
        normal = literal_normalized(expected)
        assert with_none(whitened(values, 1e-4)) == [None if value is None else pytest.approx(value, abs=1e-9) for value in normal]


@pytest.mark.rows("RLOO-003", "RLOO-013")
@pytest.mark.cases("S02")
@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 2, NAN], [0, -1.5, 1.5, NAN]),
        ([0.7, NAN], [NAN, NAN]),
        ([0.7, 0.1, NAN], [0.6, -0.6, NAN]),
        ([2, 0, 1, 3], [2 / 3, -2, -2 / 3, 2]),
        ([0.1] * 3, [0, 0, 0]),
    ],
)
def test_hand_numbers(rewards, expected):
    assert leave_one_out(rewards, [4] * len(rewards)).tolist() == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_equal_rewards_give_exactly_zero():
    assert leave_one_out([0.1] * 7, [0] * 7).tolist() == [0.0] * 7
    assert whitened(np.array([NAN, NAN]), 1e-4).tolist() == pytest.approx([NAN, NAN], nan_ok=True)
    assert whitened(np.zeros(3), 1e-4).tolist() == [0.0] * 3
