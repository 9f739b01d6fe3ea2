"""How loss terms become one number: a factor for each term, fixed before the first forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlexp.config.errors import UserError


@dataclass
class Counts:
    """What factors are made of. Counted over the whole step on all ranks, by rollout (a fork gains no weight), after truncation
    masking and drops that leave the data, and before masks that depend on ratios or entropies."""

    tokens_L: np.ndarray
    """active terms of the term's rollout, all its samples (|o_i|), [L]"""
    tokens: int
    """active terms of the step (N)"""
    rollouts: int
    """rollouts of the step, those without active terms too (B)"""
    max_completion_length: int
    """rollout.max_completion_length (L_max)"""
    microbatch_tokens_L: np.ndarray | None = None
    """active terms of the micro-batch the term is in (one row of one rank), [L]; micro_batch only"""
    microbatches: int | None = None
    """micro-batches of the step, summed over ranks; micro_batch only"""


def _tokens(counts: Counts) -> np.ndarray:
    return np.full(len(counts.tokens_L), max(counts.tokens, 1), dtype=np.float64)


def _rollout_mean(counts: Counts) -> np.ndarray:
    return max(counts.rollouts, 1) * np.maximum(np.asarray(counts.tokens_L, dtype=np.float64), 1)


def _rollout_constant(counts: Counts) -> np.ndarray:
    return np.full(len(counts.tokens_L), float(max(counts.rollouts, 1)) * max(counts.max_completion_length, 1))


def _rollouts(counts: Counts) -> np.ndarray:
    return np.full(len(counts.tokens_L), float(max(counts.rollouts, 1)))


def _micro_batch(counts: Counts) -> np.ndarray:
    if counts.microbatch_tokens_L is None or counts.microbatches is None:
        raise ValueError("reduction micro_batch needs the micro-batches: plan the step before asking for its scales")
    return max(counts.microbatches, 1) * np.maximum(np.asarray(counts.microbatch_tokens_L, dtype=np.float64), 1)


DENOMINATORS = {
    "tokens": _tokens,
    "rollout_mean": _rollout_mean,
    "rollout_constant": _rollout_constant,
    "rollouts": _rollouts,
    "micro_batch": _micro_batch,
}
"""name in LossConfig.reduction -> denominator of each term, at least 1 so that an empty step gives 0 and not NaN"""


def scales(name: str, counts: Counts) -> np.ndarray:
    """The factor of each loss term, float64 [L]: the loss of a step is sum_L scale_L * x_L over its micro-batches and ranks.

    name: tokens 1/N, rollout_mean 1/(B |o_i|), rollout_constant 1/(B L_max), rollouts 1/B, micro_batch 1/(tokens of the
    micro-batch x micro-batches). All but the last make a step independent of how it is split. Raises UserError for another name.
    """
    if name not in DENOMINATORS:
        raise UserError(f"unknown reduction {name!r}: set `reduction` in the loss's config dataclass to one of {', '.join(DENOMINATORS)}")
    return 1.0 / DENOMINATORS[name](counts)
