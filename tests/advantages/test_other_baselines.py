"""GDPO, OPO, MaxRL, pass@k, REINFORCE and REINFORCE++: hand numbers, and literal loops on ragged batches."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from rlexp.advantages.batch import less_batch_mean, less_group_mean, to_the_end, whitened
from rlexp.advantages.group_relative import group_relative
from rlexp.advantages.maximum_likelihood import maximum_likelihood
from rlexp.advantages.normalize_then_sum import normalize_then_sum
from rlexp.advantages.optimal_baseline import optimal_baseline
from rlexp.advantages.pass_at_k import pass_at_k_advantages
from rlexp.config.errors import UserError

NAN = math.nan


def ragged(seed: int, choices=(0.0, 0.1, 0.5, 1.0)):
    """200 batches: rewards with gaps, group keys in any order, lengths."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        sizes = rng.integers(1, 7, rng.integers(1, 5))
        groups = rng.permutation(np.repeat(rng.permutation(len(sizes)) * 7 - 9, sizes))
        totals = np.where(rng.random(len(groups)) < 0.2, np.nan, rng.choice(choices, len(groups)))
        yield totals, groups, rng.integers(1, 9, len(groups)), rng


def peers_of(i, totals, groups):
    return [j for j in range(len(totals)) if groups[j] == groups[i] and not math.isnan(totals[j])]


def same(found, expected, tolerance=1e-12):
    assert found.tolist() == pytest.approx(expected, abs=tolerance, nan_ok=True)


def test_opo_equals_a_literal_loop():
    for totals, groups, lengths, _ in ragged(1):
        expected = []
        for i, reward in enumerate(totals):
            peers = peers_of(i, totals, groups)
            weight = sum(int(lengths[j]) for j in peers)
            expected.append(NAN if math.isnan(reward) else reward - sum(int(lengths[j]) * float(totals[j]) for j in peers) / weight)
        same(optimal_baseline(totals, lengths, groups), expected)
    same(optimal_baseline([1, 0, 0], [2, 3, 5], [0] * 3), [0.8, -0.2, -0.2])
    assert optimal_baseline([0.1] * 3 + [0.7], [1, 2, 4, 3], [0] * 3 + [1]).tolist() == [0.0] * 4
    same(optimal_baseline([1, 0], [0, 0], [0, 0]), [0.5, -0.5])


def test_maxrl_equals_a_literal_loop():
    for totals, groups, _, _ in ragged(2):
        expected = []
        for i, reward in enumerate(totals):
            peers = [float(totals[j]) for j in peers_of(i, totals, groups)]
            mean = sum(peers) / len(peers) if peers else 0.0
            expected.append(NAN if math.isnan(reward) else 0.0 if mean == 0 else (reward - mean) / mean)
        same(maximum_likelihood(totals, groups), expected, 1e-9)
    same(maximum_likelihood([1, 0, 0, 0, 0, 0], [0] * 4 + [1] * 2), [3, -1, -1, -1, 0, 0])
    with pytest.raises(UserError, match=r"needs rewards >= 0: set algorithm\.reward_clip_range"):
        maximum_likelihood([1, -1], [0, 0])


def literal_pass_at_k(correct, groups, k):
    """All sets of k scored rollouts of the group, one by one."""
    out = []
    for i, mine in enumerate(correct):
        peers = peers_of(i, correct, groups)
        if math.isnan(mine):
            out.append(NAN)
            continue
        sets = list(itertools.combinations(peers, k))
        worth = {chosen: float(any(correct[j] == 1 for j in chosen)) for chosen in sets}
        std = statistics.pstdev(worth.values()) if sets else 0.0
        mean = statistics.fmean(worth.values()) if sets else 0.0
        with_me = [chosen for chosen in sets if i in chosen]
        out.append(statistics.fmean((worth[chosen] - mean) / std for chosen in with_me) if std else 0.0)
    return out


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_at_k_equals_going_through_all_sets(k):
    for totals, groups, _, _ in ragged(3, choices=(0.0, 0.0, 1.0)):
        same(pass_at_k_advantages(totals, groups, k), literal_pass_at_k(totals.tolist(), groups.tolist(), k), 1e-9)


def test_pass_at_k_by_hand():
    # 1 right of 4, k = 2: 3 of 6 sets fail, std 0.5; a wrong one fails in 2 of its 3 sets
    same(pass_at_k_advantages([1, 0, 0, 0], [0] * 4, 2), [1, *[(0.5 - 2 / 3) / 0.5] * 3])
    assert pass_at_k_advantages([1, 1, 1, 0], [0] * 4, 2).tolist() == [0.0] * 4, "no set fails"
    assert pass_at_k_advantages([1, 0], [0, 0], 3).tolist() == [0.0, 0.0], "no set at all"


@pytest.mark.rows("GRPO-017", "GRPO-019", "GRPO-020", "GRPO-021")
def test_normalize_then_sum_equals_a_literal_loop():
    for totals, groups, _, rng in ragged(4):
        rewards = np.stack([totals, np.where(rng.random(len(totals)) < 0.3, np.nan, rng.normal(5, 3, len(totals)))], axis=1)
        weights = [0.7, -1.5]
        sums = []
        for i in range(len(totals)):
            parts = []
            for k, weight in enumerate(weights):
                peers = [float(rewards[j, k]) for j in peers_of(i, rewards[:, k], groups)]
                if not math.isnan(rewards[i, k]):
                    std = statistics.stdev(peers) if len(peers) > 1 else NAN
                    z = (float(rewards[i, k]) - statistics.fmean(peers)) / (std + 1e-4)
                    parts.append(0.0 if math.isnan(z) else weight * z)
            sums.append(math.fsum(parts) if parts else NAN)
        known = [x for x in sums if not math.isnan(x)]
        std = statistics.stdev(known) if len(known) > 1 else 0.0
        same(normalize_then_sum(rewards, weights, groups), [0.0 if math.isnan(x) else (x - statistics.fmean(known)) / (std + 1e-4) for x in sums], 1e-7)


@pytest.mark.rows("GRPO-019")
def test_normalize_then_sum_keeps_a_small_reward_audible():
    rewards = [[100, 0], [0, 1], [100, 1], [0, 0]]
    found = normalize_then_sum(rewards, [1, 1], [0] * 4)
    # both columns have z = +-0.866; sums 0, 0, 1.732, -1.732, std sqrt(2)
    z = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    z_large = 50 / (100 * math.sqrt(1 / 3) + 1e-4)
    sums = [z_large - z, z - z_large, z + z_large, -z - z_large]
    same(found, [x / (statistics.stdev(sums) + 1e-4) for x in sums], 1e-9)
    assert abs(found[0]) < 1e-3 and abs(group_relative([100, 1, 101, 0], [0] * 4)[0]) > 0.8


def test_batch_statistics():
    for totals, groups, lengths, rng in ragged(5):
        known = [float(x) for x in totals if not math.isnan(x)]
        mean = sum(known) / len(known) if known else 0.0
        same(less_batch_mean(totals), [x - mean for x in totals])
        expected = [x - statistics.fmean(float(totals[j]) for j in peers_of(i, totals, groups)) if not math.isnan(x) else NAN for i, x in enumerate(totals)]
        same(less_group_mean(totals, groups), expected)
        std = statistics.stdev(known) if len(known) > 1 else 0.0
        same(whitened(totals, 1e-4), [(x - mean) / (std + 1e-4) for x in totals], 1e-8)
        rollout = np.repeat(np.arange(len(lengths)), lengths)
        x = rng.normal(size=len(rollout))
        same(to_the_end(x, rollout), [sum(x[s] for s in range(t, len(x)) if rollout[s] == rollout[t]) for t in range(len(x))])
