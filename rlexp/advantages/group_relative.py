"""GRPO's advantage: the reward relative to the mean of its group."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import bessel_std, is_flat, members, scored
from rlexp.config.errors import UserError

STD_OFFSET = 1e-4
"""added to the std in the divisor, so that groups with nearly equal rewards do not explode"""

SCALES = ("group", "batch", "none")


def group_relative(totals_R: ArrayLike, group_R: ArrayLike, scale: str = "group") -> np.ndarray:
    """(r - mean of its group) / (std + 1e-4), float64 [R] in the order given (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    totals_R: total reward, NaN where nothing scored the rollout. group_R: int keys, any order, any sizes.
    scale: whose std divides, with n - 1. "group": the group's. "batch": that of all scored rollouts at hand (Lite PPO,
    arXiv 2508.08221), steadier when groups are small or nearly flat. "none": no division (Dr. GRPO, arXiv 2503.20783):
    questions that are too easy or too hard gain no weight, but the size of an update follows the scale of the rewards.

    Unscored rollouts get 0 and are in no mean or std. A group with equal rewards or a single scored rollout gets exactly 0.
    """
    if scale not in SCALES:
        raise UserError(f"algorithm.scale_rewards={scale!r} is unknown: use one of {', '.join(SCALES)}")
    totals = np.asarray(totals_R, dtype=np.float64)
    advantages = np.zeros(len(totals))
    batch_std = bessel_std(totals)
    for places in members(np.asarray(group_R)):
        rewards = totals[places]
        if is_flat(rewards):
            continue
        centred = rewards - scored(rewards).mean()
        if scale != "none":
            centred = centred / ((bessel_std(rewards) if scale == "group" else batch_std) + STD_OFFSET)
        advantages[places] = np.where(np.isnan(centred), 0.0, centred)
    return advantages
