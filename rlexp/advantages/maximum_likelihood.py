"""MaxRL's advantage: the reward relative to the mean of its group, in units of that mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import is_flat, members, scored
from rlexp.config.errors import UserError


def maximum_likelihood(totals_R: ArrayLike, group_R: ArrayLike) -> np.ndarray:
    """(r_i - m) / m with m the mean of the scored rewards of the group, float64 [R]; 0 where m is 0 (MaxRL, arXiv 2602.02710, section 4).

    With rewards 0 and 1 and K of N rollouts right, the weights r_i / m - 1 make the mean over the right ones of grad log pi, less the mean over
    all: an unbiased gradient of the maximum likelihood objective truncated at N, which weighs a task by one over its success rate. totals_R: NaN
    where nothing scored the rollout, which gets NaN. Raises UserError for a negative reward, for which the weight has no meaning.
    """
    totals = np.asarray(totals_R, dtype=np.float64)
    if (scored(totals) < 0).any():
        raise UserError(
            "algorithm=maxrl divides by the mean reward of a group and needs rewards >= 0: set algorithm.reward_clip_range=[0, 1], or another reward"
        )
    advantages = np.full(len(totals), np.nan)
    for places in members(np.asarray(group_R)):
        known = scored(totals[places])
        if is_flat(known):
            advantages[places] = np.where(np.isnan(totals[places]), np.nan, 0.0)
        else:
            advantages[places] = totals[places] / known.mean() - 1.0
    return advantages
