"""Advantages for pass@k: how much better the sets of k rollouts do that a rollout is in."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import members


def pass_at_k_advantages(correct_R: ArrayLike, group_R: ArrayLike, k: int) -> np.ndarray:
    """The mean normalised advantage of all sets of k rollouts of the group that hold the rollout (arXiv 2508.10751, section 3.3), float64 [R].

    correct_R: 1 right, 0 wrong, NaN not scored. With N scored rollouts, M of them wrong: a set is worth 1 unless all of it is wrong, so the mean is
    p = 1 - C(M, k) / C(N, k) and the std sqrt(p (1 - p)). A right rollout gets (1 - p) / std, a wrong one (1 - p - C(M - 1, k - 1) /
    C(N - 1, k - 1)) / std: the share of its sets that are wholly wrong. 0 where the std is 0, and in groups with fewer than k scored rollouts; NaN
    for a rollout that nothing scored. k = 1 is the group-relative advantage with the population std.
    """
    correct = np.asarray(correct_R, dtype=np.float64)
    advantages = np.full(len(correct), np.nan)
    for places in members(np.asarray(group_R)):
        mine = places[~np.isnan(correct[places])]
        count, wrong = len(mine), int((correct[mine] == 0).sum())
        failing = math.comb(wrong, k) / math.comb(count, k) if count >= k else 0.0
        if failing in (0.0, 1.0):
            advantages[mine] = 0.0
            continue
        std = math.sqrt(failing * (1 - failing))
        of_wrong = math.comb(wrong - 1, k - 1) / math.comb(count - 1, k - 1)
        advantages[mine] = np.where(correct[mine] == 0, failing - of_wrong, failing) / std
    return advantages
