"""GDPO's advantage: each reward normalised in its group first, the weighted sum normalised over the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.group_relative import STD_OFFSET, group_relative
from rlexp.advantages.groups import bessel_std, scored
from rlexp.advantages.total import weighted_total


def normalize_then_sum(rewards_RK: ArrayLike, weights_K: ArrayLike, group_R: ArrayLike) -> np.ndarray:
    """(r - mean over the batch) / (std over the batch + 1e-4) of r = sum_k w_k z_k, z_k = (R_k - mean of its group) / (std of its group + 1e-4).

    GDPO (arXiv 2601.05242): rewards of different scale or spread keep their say, where a sum would let one drown the others. rewards_RK: [R, K],
    None or NaN where function k has no opinion; it is in no mean of that function and adds 0. weights_K: [K]. Returns float64 [R], 0 for a rollout
    that nothing scored.
    """
    rewards = np.asarray(rewards_RK, dtype=np.float64)
    z_RK = np.stack([group_relative(rewards[:, k], group_R, "group") for k in range(rewards.shape[1])], axis=1)
    totals = weighted_total(np.where(np.isnan(rewards), np.nan, z_RK), weights_K)
    known = scored(totals)
    if not len(known):
        return np.zeros(len(totals))
    return np.where(np.isnan(totals), 0.0, (totals - known.mean()) / (bessel_std(totals) + STD_OFFSET))
