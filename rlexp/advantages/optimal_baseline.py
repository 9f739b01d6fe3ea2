"""OPO's advantage: the reward relative to the length-weighted mean of its group."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import is_flat, members


def optimal_baseline(totals_R: ArrayLike, lengths_R: ArrayLike, group_R: ArrayLike) -> np.ndarray:
    """r_i - sum_j l_j r_j / sum_j l_j over the scored rollouts of the group, float64 [R] (OPO, arXiv 2505.23585, section 3.2).

    The baseline of least variance when the squared gradient norm of a rollout grows with its length. totals_R: NaN where nothing scored the
    rollout; its advantage is NaN. lengths_R: sampled tokens; a group of empty rollouts has the plain mean as baseline. Equal rewards give exactly 0.
    """
    totals, lengths = np.asarray(totals_R, dtype=np.float64), np.asarray(lengths_R, dtype=np.float64)
    advantages = np.full(len(totals), np.nan)
    for places in members(np.asarray(group_R)):
        mine = places[~np.isnan(totals[places])]
        if is_flat(totals[mine]):
            advantages[mine] = 0.0
        else:
            weights = lengths[mine] if lengths[mine].any() else np.ones(len(mine))
            advantages[mine] = totals[mine] - (weights * totals[mine]).sum() / weights.sum()
    return advantages
