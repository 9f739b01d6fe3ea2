"""Statistics over the whole batch, and sums to the end of a rollout, for REINFORCE and REINFORCE++."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import bessel_std, members, scored


def less_batch_mean(totals_R: ArrayLike) -> np.ndarray:
    """r - mean of all scored rewards at hand, float64 [R]; NaN stays. The baseline of Williams 1992."""
    totals = np.asarray(totals_R, dtype=np.float64)
    known = scored(totals)
    return totals - known.mean() if len(known) else totals


def less_group_mean(totals_R: ArrayLike, group_R: ArrayLike) -> np.ndarray:
    """r - mean of the scored rewards of its group, float64 [R]; NaN stays."""
    totals = np.array(totals_R, dtype=np.float64)
    for places in members(np.asarray(group_R)):
        known = scored(totals[places])
        if len(known):
            totals[places] -= known.mean()
    return totals


def to_the_end(x_L: ArrayLike, rollout_L: ArrayLike) -> np.ndarray:
    """The sum of x from each term to the last one of its rollout, float64 [L]. The terms of a rollout lie together, in order."""
    x, rollouts = np.asarray(x_L, dtype=np.float64), np.asarray(rollout_L)
    sums = np.zeros(len(x))
    for places in members(rollouts):
        sums[places] = np.cumsum(x[places][::-1])[::-1]
    return sums


def whitened(x_L: ArrayLike, offset: float) -> np.ndarray:
    """(x - mean) / (std + offset) over all that are not NaN, with n - 1; NaN stays."""
    x = np.asarray(x_L, dtype=np.float64)
    known = scored(x)
    return (x - known.mean()) / (bessel_std(x) + offset) if len(known) else x
