"""RLOO's advantage: the reward relative to the mean of the other rollouts of its group."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import is_flat, members, scored


def leave_one_out(totals_R: ArrayLike, group_R: ArrayLike) -> np.ndarray:
    """r_i - (sum of the others' rewards) / (n - 1) over the n scored rollouts of each group, float64 [R] in the order given.

    Kool et al. 2019; Ahmadian et al. 2024 (arXiv 2402.14740, section 2.3). totals_R: total reward, NaN where nothing scored the rollout.
    group_R: int keys, any order, any sizes. NaN (no advantage) for an unscored rollout and for the only scored one of a group;
    exactly 0 in a group of equal rewards.
    """
    totals = np.asarray(totals_R, dtype=np.float64)
    advantages = np.full(len(totals), np.nan)
    for places in members(np.asarray(group_R)):
        rewards = totals[places]
        values = scored(rewards)
        if len(values) > 1:
            others = (values.sum() - rewards) / (len(values) - 1)
            advantages[places] = np.where(np.isnan(rewards), np.nan, 0.0) if is_flat(rewards) else rewards - others
    return advantages
