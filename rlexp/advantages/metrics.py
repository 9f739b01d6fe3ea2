"""Metrics of the rewards of one generation batch. Every rank holds all rewards, so these are plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlexp.advantages.groups import bessel_std, is_flat, members, scored


def reward_metrics(rewards_RK: ArrayLike, names: Sequence[str], totals_R: ArrayLike, group_R: ArrayLike) -> dict[str, float]:
    """reward, reward_std, frac_reward_zero_std and rewards/<name>/mean, rewards/<name>/std over the rollouts that were scored.

    rewards_RK: [R, K] with None or NaN for no score. names: [K]. totals_R: the weighted total that is trained on. Stds are over the whole
    batch with n - 1, 0 for a single score. frac_reward_zero_std is the share of rollouts in groups without signal (equal
    rewards, or fewer than two scored). Every number is finite: what nothing was scored for is left out.
    """
    rewards = np.asarray(rewards_RK, dtype=np.float64)
    totals = np.asarray(totals_R, dtype=np.float64)
    metrics: dict[str, float] = {}
    for k, name in enumerate(names):
        if len(scored(rewards[:, k])):
            metrics[f"rewards/{name}/mean"] = float(scored(rewards[:, k]).mean())
            metrics[f"rewards/{name}/std"] = bessel_std(rewards[:, k])
    if len(scored(totals)):
        metrics["reward"] = float(scored(totals).mean())
        metrics["reward_std"] = bessel_std(totals)
    if len(totals):
        flat = sum(len(places) for places in members(np.asarray(group_R)) if is_flat(totals[places]))
        metrics["frac_reward_zero_std"] = flat / len(totals)
    return metrics
