"""The weighted total of several rewards."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.config.errors import UserError


def weighted_total(rewards_RK: ArrayLike, weights_K: ArrayLike) -> np.ndarray:
    """sum_k w_k r_k of each rollout, float64 [R]; NaN where no function scored it.

    rewards_RK: [R, K], None or NaN where function k has no opinion: it is left out of the sum, and the other weights stay as
    they are. weights_K: [K]. Raises UserError for an infinite reward, ValueError for another number of weights.
    """
    weights = np.asarray(weights_K, dtype=np.float64)
    rewards = np.asarray(rewards_RK, dtype=np.float64)
    if rewards.ndim != 2 or rewards.shape[1] != len(weights):
        raise ValueError(f"rewards of shape {rewards.shape} need one weight per reward function, not {len(weights)}")
    infinite = np.flatnonzero(np.isinf(rewards).any(axis=1))
    if len(infinite):
        raise UserError(f"the reward of rollouts {infinite.tolist()} is infinite: a reward function must return a finite number, or None for no score")
    missing = np.isnan(rewards)
    total = np.where(missing, 0.0, rewards * weights).sum(axis=1)
    return np.where(missing.all(axis=1), np.nan, total)
