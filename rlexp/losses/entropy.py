"""Entropy in the objective: a bonus, its adaptive coefficient, and the mask that keeps high-entropy tokens only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlexp.config.algorithm import LossConfig

TIE = 1e-5
"""Entropies (in nats) this close to the threshold count as at it. Tokens with the same context have one entropy on paper and differ in the
last bits by the row they are forwarded in; without this, which of them is kept would depend on how a step is split."""


class EntropyController:
    """The coefficient of the entropy bonus; with use_adaptive_entropy it follows the entropy (Skywork-OR1, arXiv 2505.22312, section 4).

    After each step it grows by entropy_coef_delta if the step's entropy was at most entropy_target, else it shrinks, within its
    bounds. It is applied only while the entropy of the step before was at most the target; the first step applies nothing.
    """

    def __init__(self, config: LossConfig) -> None:
        self.config = config
        self.coef = config.entropy_coef
        self.last = math.inf
        """entropy of the step before"""

    @property
    def active(self) -> bool:
        """Whether there is a bonus at all."""
        return self.config.entropy_coef != 0 or self.config.use_adaptive_entropy

    @property
    def applied(self) -> float:
        """The coefficient in the loss of this step."""
        return 0.0 if self.config.use_adaptive_entropy and self.last > self.config.entropy_target else self.coef

    def update(self, entropy: float) -> None:
        """Take in the entropy of a step, the same number on every rank; NaN (a step without terms) changes nothing."""
        if not self.config.use_adaptive_entropy or math.isnan(entropy):
            return
        self.last = entropy
        if entropy <= self.config.entropy_target:
            self.coef = min(self.coef + self.config.entropy_coef_delta, self.config.entropy_coef_max)
        else:
            self.coef = max(self.coef - self.config.entropy_coef_delta, self.config.entropy_coef_min)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"entropy_coef": self.coef, "last_entropy": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""
        self.coef, self.last = state["entropy_coef"], state["last_entropy"]


def high_entropy(entropy_L: np.ndarray, active_L: np.ndarray, step_L: np.ndarray, top: float) -> np.ndarray:
    """Which terms are in the top share by entropy among the active terms of their step, bool [L] ("80/20", arXiv 2506.01939).

    The threshold is the linear quantile at 1 - top, one for each step over all its terms on all ranks; terms at it (within TIE) are kept.
    entropy_L: as scored before the first step. A term whose entropy is not a number is kept, so that the loss shows it.
    """
    keep_L = active_L.copy()
    for step in np.unique(step_L[active_L]):
        mine_L = active_L & (step_L == step)
        keep_L[mine_L] = ~(entropy_L[mine_L] < np.quantile(entropy_L[mine_L], 1.0 - top) - TIE)
    return keep_L


def mean_scale(keep_L: np.ndarray, step_L: np.ndarray) -> np.ndarray:
    """1 / (kept terms of the term's step), float64 [L]: the bonus is a plain mean over tokens, whatever the loss's own reduction is."""
    if not len(step_L):
        return np.zeros(0)
    return 1.0 / np.maximum(np.bincount(step_L, keep_L), 1.0)[step_L]
