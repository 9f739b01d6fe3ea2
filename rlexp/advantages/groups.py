"""Groups by key, and statistics that do not depend on the order in which rollouts arrive."""

from __future__ import annotations

import numpy as np


def members(group_R: np.ndarray) -> list[np.ndarray]:
    """The places of each group's rollouts, by ascending key. group_R: int [R], any keys, any order, any sizes."""
    if len(group_R) == 0:
        return []
    order = np.argsort(group_R, kind="stable")
    starts = np.flatnonzero(np.diff(np.asarray(group_R)[order])) + 1
    return np.split(order, starts)


def scored(x_R: np.ndarray) -> np.ndarray:
    """The numbers of x that are not NaN, sorted: sums over them have the same bits whatever the order of arrival."""
    return np.sort(x_R[~np.isnan(x_R)])


def is_flat(x_R: np.ndarray) -> bool:
    """No signal: fewer than two scored, or all equal. By max == min: the std of equal floats need not be 0."""
    values = scored(x_R)
    return len(values) < 2 or bool(values[0] == values[-1])


def bessel_std(x_R: np.ndarray) -> float:
    """Standard deviation with n - 1 of the scored numbers, exactly 0 where they are flat."""
    return 0.0 if is_flat(x_R) else float(np.std(scored(x_R), ddof=1))
