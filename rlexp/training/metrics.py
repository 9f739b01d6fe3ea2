"""Metrics of one generation batch; every rank holds all its headers, so these are plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlexp.advantages.metrics import reward_metrics
from rlexp.algorithms.base import group_numbers
from rlexp.records.rollout import GenerationBatch, Rollout


def completion_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Lengths in sampled tokens, and how many completions were cut off. Counted before truncated ones are masked."""
    lengths = np.array([rollout.length for rollout in rollouts], dtype=np.float64)
    ended = np.array([not rollout.truncated for rollout in rollouts], dtype=bool)
    finished = lengths[ended] if ended.any() else np.zeros(1)
    return {
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/mean_terminated_length": float(finished.mean()),
        "completions/min_terminated_length": float(finished.min()),
        "completions/max_terminated_length": float(finished.max()),
        "completions/clipped_ratio": float(1.0 - ended.mean()),
    }


def batch_metrics(batch: GenerationBatch) -> dict[str, float]:
    """Rewards, completions, and what rewards logged themselves, of a whole generation batch."""
    rollouts = batch.rollouts
    names = list(dict.fromkeys(name for rollout in rollouts for name in rollout.rewards))
    table = np.array([[_number(rollout.rewards.get(name)) for name in names] for rollout in rollouts], dtype=np.float64).reshape(len(rollouts), len(names))
    metrics = reward_metrics(table, names, np.array([rollout.reward for rollout in rollouts]), group_numbers(batch.groups))
    metrics.update(completion_metrics(rollouts))
    metrics.update({name: total / count for name, (total, count) in sorted(batch.metrics.items()) if count})
    return metrics


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def pass_at_k(correct: int, count: int, k: int) -> float:
    """Unbiased chance that at least one of k of `count` samples is correct (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if count - correct < k:
        return 1.0
    return 1.0 - math.prod((count - correct - i) / (count - i) for i in range(k))
