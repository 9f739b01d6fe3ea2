"""The loss terms of all samples of one generation batch, laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlexp.records.sample import Sample
from rlexp.records.turn import Candidates, joined_candidates

SUPPORT = "support_ids"
"""in Terms.extra: token ids of each term that its distributions are compared on, [L, C]"""


@dataclass
class Terms:
    """Flat arrays with one entry per loss term, in sample order. A row picks its terms by index (`Row.term_L`)."""

    target_L: np.ndarray
    """int64"""
    sampler_logp_L: np.ndarray
    """float32"""
    rollout_L: np.ndarray
    """int64, index into the batch's rollouts"""
    sample_L: np.ndarray
    """int64, index into the batch's samples"""
    offsets_S: np.ndarray
    """int64 [samples + 1]: terms of sample s are offsets_S[s]:offsets_S[s + 1]"""
    candidates: Candidates | None
    """kept candidate ids per term when sampling was truncated"""
    advantage_L: np.ndarray
    """float64"""
    active_L: np.ndarray
    """bool; False takes a term out of the loss"""
    step_L: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64, which optimizer step of the batch the term belongs to; set by the plan"""
    step_R: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64, that of each rollout of the batch, those without terms too; likewise"""
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """scored once per batch without gradient: old, reference, value, ... (float64, exact for float32 values)"""
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    """further numbers of an algorithm: returns, masks, ..."""

    @property
    def count(self) -> int:
        """Number of loss terms."""
        return len(self.target_L)


def _join_candidates(samples: Sequence[Sample]) -> Candidates | None:
    if all(sample.candidates is None for sample in samples):
        return None
    if any(sample.candidates is None and sample.terms for sample in samples):
        raise ValueError("some samples carry candidate ids and others do not: one generator must sample the whole batch")
    return joined_candidates([sample.candidates for sample in samples if sample.candidates is not None])


def flatten(samples: Sequence[Sample]) -> Terms:
    """The terms of all samples, advantages still zero."""
    counts = np.array([sample.terms for sample in samples], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def joined(name: str, dtype: type) -> np.ndarray:
        parts: list[np.ndarray] = [np.asarray(getattr(sample, name), dtype=dtype) for sample in samples]
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    return Terms(
        target_L=joined("target_L", np.int64),
        sampler_logp_L=joined("sampler_logp_L", np.float32),
        rollout_L=np.repeat(np.array([sample.rollout for sample in samples], dtype=np.int64), counts),
        sample_L=np.repeat(np.arange(len(samples), dtype=np.int64), counts),
        offsets_S=offsets,
        candidates=_join_candidates(samples),
        advantage_L=np.zeros(int(offsets[-1])),
        active_L=np.ones(int(offsets[-1]), bool),
    )
