"""Which tokens drive the entropy down: those whose log-prob and advantage are high together (arXiv 2505.22617)."""

from __future__ import annotations

import numpy as np

from rlexp.config.losses import CovarianceLossConfig


def covariances(logp_L: np.ndarray, advantage_L: np.ndarray, active_L: np.ndarray, step_L: np.ndarray) -> np.ndarray:
    """(log pi - its mean) (A - its mean) of each active term, the means over the active terms of its step, 0 at others; float64 [L]."""
    cov_L = np.zeros(len(logp_L))
    for step in np.unique(step_L[active_L]):
        mine_L = active_L & (step_L == step)
        cov_L[mine_L] = (logp_L[mine_L] - logp_L[mine_L].mean()) * (advantage_L[mine_L] - advantage_L[mine_L].mean())
    return cov_L


def chosen_terms(config: CovarianceLossConfig, cov_L: np.ndarray, active_L: np.ndarray, step_L: np.ndarray, draw_L: np.ndarray) -> np.ndarray:
    """The terms that a covariance loss treats apart, bool [L]: cov_share of each step's active terms, at least one.

    choice "random" (Clip-Cov): among those whose covariance lies between the bounds, the ones with the smallest draws, fewer if
    there are fewer. "top" (KL-Cov): those with the largest covariance, the first of equal ones. draw_L: random numbers.
    """
    chosen_L = np.zeros(len(cov_L), bool)
    for step in np.unique(step_L[active_L]):
        mine = np.flatnonzero(active_L & (step_L == step))
        count = max(int(config.cov_share * len(mine)), 1)
        low, high = config.cov_bounds
        mine = mine[(cov_L[mine] > low) & (cov_L[mine] < high)]
        order = np.argsort(draw_L[mine] if config.choice == "random" else -cov_L[mine], kind="stable")
        chosen_L[mine[order[:count]]] = True
    return chosen_L
