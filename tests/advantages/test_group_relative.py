"""Rewards to advantages: hand numbers, a literal double loop, and every way a reward can be missing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlexp.advantages.group_relative import group_relative
from rlexp.advantages.total import weighted_total
from rlexp.config.errors import UserError

NAN = math.nan


def literal(totals, groups, scale):
    """One rollout at a time, straight from the formula."""
    valid = [r for r in totals if not math.isnan(r)]
    batch_mean = math.fsum(valid) / len(valid) if valid else 0.0
    batch_std = math.sqrt(sum((r - batch_mean) ** 2 for r in valid) / (len(valid) - 1)) if len(valid) > 1 else NAN
    out = []
    for reward, group in zip(totals, groups, strict=True):
        peers = [r for r, g in zip(totals, groups, strict=True) if g == group and not math.isnan(r)]
        if math.isnan(reward) or len(peers) < 2 or max(peers) == min(peers):
            out.append(0.0)
            continue
        mean = sum(peers) / len(peers)
        std = math.sqrt(sum((r - mean) ** 2 for r in peers) / (len(peers) - 1))
        out.append((reward - mean) / {"group": std + 1e-4, "batch": batch_std + 1e-4, "none": 1.0}[scale])
    return out


@pytest.mark.rows("GRPO-013", "GRPO-014", "GRPO-015", "GRPO-018", "GRPO-020", "GRPO-021", "GRPO-022")
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equals_a_literal_double_loop_on_ragged_groups(scale):
    rng = np.random.default_rng(7)
    for _ in range(100):
        size = int(rng.integers(1, 12))
        groups = rng.integers(0, 4, size) * 1000 - 1500
        totals = np.where(rng.random(size) < 0.25, np.nan, rng.choice([0.0, 0.1, 0.5, 1.0, rng.normal()], size))
        result = group_relative(totals, groups, scale)
        assert result.dtype == np.float64
        assert result.tolist() == pytest.approx(literal(totals.tolist(), groups.tolist(), scale), abs=1e-12)


@pytest.mark.rows("GRPO-016", "GRPO-018", "GRPO-020", "GRPO-021", "GRPO-124")
@pytest.mark.cases("S01")
def test_a_missing_reward_does_not_pull_the_mean():
    rewards = [[1, None], [None, None], [0, 1], [None, None], [None, None], [None, None], [0.4, None], [None, None]]
    totals = weighted_total(rewards, [1, 0.5])
    assert totals.tolist() == pytest.approx([1.0, NAN, 0.5, NAN, NAN, NAN, 0.4, NAN], nan_ok=True)
    advantages = group_relative(totals, [0, 0, 0, 0, 1, 1, 1, 1])
    assert advantages.tolist() == pytest.approx([0.706907, 0, -0.706907, 0, 0, 0, 0, 0], abs=1e-6)


@pytest.mark.rows("GRPO-013", "GRPO-022")
@pytest.mark.cases("S03")
def test_groups_of_unequal_size_in_any_order():
    names = ["A0", "B0", "C0", "A1", "C1", "B1", "A2", "C2", "B2", "A3", "C3"]
    reward = {"A0": 1, "A1": 0, "A2": 0, "A3": 1, "B0": 5, "B1": 5, "B2": 5, "C0": 2, "C1": 0, "C2": 0, "C3": 0}
    expected = {**dict.fromkeys(["A0", "A3"], 0.865875), **dict.fromkeys(["A1", "A2"], -0.865875), **dict.fromkeys(["B0", "B1", "B2"], 0.0), "C0": 1.499850}
    expected |= dict.fromkeys(["C1", "C2", "C3"], -0.499950)
    rng = np.random.default_rng(0)
    first = None
    for _ in range(51):
        result = dict(zip(names, group_relative([reward[n] for n in names], [{"A": 31, "B": -4, "C": 7}[n[0]] for n in names]).tolist(), strict=True))
        assert result == pytest.approx(expected, abs=1e-6)
        assert result["B0"] == result["B1"] == result["B2"] == 0.0
        first = result if first is None else first
        assert result == first  # to the bit
        names = rng.permutation(names).tolist()


@pytest.mark.rows("GRPO-022")
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_the_order_of_arrival_changes_no_bit(scale):
    rng = np.random.default_rng(1)
    totals, groups = rng.normal(size=24), np.repeat([5, 2, 9], 8)
    before = group_relative(totals, groups, scale)
    for _ in range(20):
        order = rng.permutation(24)
        assert np.array_equal(group_relative(totals[order], groups[order], scale), before[order])


@pytest.mark.rows("GRPO-022")
@pytest.mark.cases("S05")
def test_groups_are_found_by_key():
    assert group_relative([1, 0, 1, 0], [1, 2, 1, 2]).tolist() == [0, 0, 0, 0]
    assert group_relative([1, 0, 1, 0], [1, 1, 2, 2]).tolist() == pytest.approx([0.707007, -0.707007] * 2, abs=1e-6)


@pytest.mark.rows("GRPO-013", "GRPO-014")
@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("group", [0.865875, -0.865875, -0.865875, 0.865875, 1.499850, -0.499950, -0.499950, -0.499950]),
        ("none", [0.5, -0.5, -0.5, 0.5, 1.5, -0.5, -0.5, -0.5]),
        # batch std of [1, 0, 0, 1, 2, 0, 0, 0]: sqrt(4 / 7)
        ("batch", [x / (math.sqrt(4 / 7) + 1e-4) for x in (0.5, -0.5, -0.5, 0.5, 1.5, -0.5, -0.5, -0.5)]),
    ],
)
def test_scales(scale, expected):
    assert group_relative([1, 0, 0, 1, 2, 0, 0, 0], [0] * 4 + [1] * 4, scale).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.rows("GRPO-021")
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_degenerate_groups_give_exactly_zero(scale):
    assert group_relative([0.1] * 3 + [0.7, NAN] + [NAN, NAN] + [3.0], [0] * 3 + [1] * 2 + [2] * 2 + [3], scale).tolist() == [0.0] * 8
    assert group_relative([0.1 + 0.2, 0.3], [0, 0], scale).tolist() != [0.0, 0.0]  # nearly equal is not equal
    assert group_relative([0.1] * 7 + [1.0, 0.0], [0] * 7 + [1, 1], scale)[:7].tolist() == [0.0] * 7
    assert group_relative([], [], scale).tolist() == []


@pytest.mark.rows("GRPO-016", "GRPO-020")
def test_totals_skip_what_is_missing_and_keep_the_weights():
    assert weighted_total([[1.0, 2.0], [None, 2.0], [1.0, None], [None, None]], [0.5, -2.0]).tolist() == pytest.approx([-3.5, -4.0, 0.5, NAN], nan_ok=True)
    assert weighted_total([[None, 5.0]], [1.0, 0.0]).tolist() == [0.0]  # scored, with weight 0


@pytest.mark.rows("GRPO-016")
def test_wrong_rewards_are_refused():
    with pytest.raises(ValueError, match="one weight per reward"):
        weighted_total([[1.0, 2.0]], [1.0])
    with pytest.raises(UserError, match=r"\[1\] is infinite"):
        weighted_total([[1.0], [math.inf]], [1.0])


@pytest.mark.rows("GRPO-014")
def test_an_unknown_scale_is_named():
    with pytest.raises(UserError, match=r"algorithm\.scale_rewards='std'.*group, batch, none"):
        group_relative([1.0, 0.0], [0, 0], "std")
