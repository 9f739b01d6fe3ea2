"""Token sequences to train on, and the flat loss terms of a whole generation batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlexp.records.turn import Candidates

VALUE = -1
"""target id of a critic's value read"""


@dataclass
class Sample:
    """A token sequence for one model, with its loss terms in order of position.

    Nothing about the loss lives on positions: `position_L[l]` is the index into `ids` whose output predicts `target_L[l]`.
    """

    model: str
    """name of the trainable that forwards it"""
    rollout: int
    """index into the batch's rollouts"""
    ids: np.ndarray
    """int64 [n]"""
    position_L: np.ndarray
    """int64 [L], strictly increasing"""
    target_L: np.ndarray
    """int64 [L], token id, or VALUE"""
    sampler_logp_L: np.ndarray
    """float32 [L]; 0 for value reads"""
    candidates: Candidates | None = None
    """per term, when sampling was truncated"""
    companions: dict[str, Context] = field(default_factory=dict)
    """second sequences by companion name (e.g. the teacher's), term for term"""
    keep_together: int | None = None
    """samples with the same number go into the same row (forks under sequence losses, pairs)"""
    pieces: tuple[int, ...] = ()
    """lengths of the turns' parts, for the record; empty when not needed"""

    @property
    def terms(self) -> int:
        """Number of loss terms."""
        return len(self.target_L)


@dataclass
class Context:
    """The sequence a companion reads for a sample: term l of the sample is predicted at ids[position_L[l]]."""

    ids: np.ndarray
    position_L: np.ndarray


@dataclass
class Needs:
    """What an algorithm and its loss want from the loop. Torch-free, derived from the config.

    before: columns scored once per batch without gradient, before the first step: "old", "reference", "value", "entropy".
    beside: companions forwarded with each micro-batch without gradient, e.g. "teacher".
    columns: columns of the training forward, e.g. "logp", "entropy", "value", "divergence".
    sampler: what a generator must return beside log-probs: "candidates".
    """

    before: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    columns: dict[str, frozenset[str]] = field(default_factory=dict)
    """trainable's name -> its columns"""
    sampler: frozenset[str] = frozenset()
    companions: frozenset[str] = frozenset()
    """frozen or slowly moving copies to keep, e.g. reference, teacher"""
