"""What one sampling request gave."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

EOS, STOP, LENGTH = "eos", "stop", "length"
"""Finish reasons: an EOS id, a stop id or stop string, or the token limit (truncated)."""


@dataclass
class Candidates:
    """The token ids each sampled token was drawn from, as one flat list: token t has ids[offsets[t]:offsets[t + 1]]."""

    ids: np.ndarray
    """int64 [sum of K]"""
    offsets: np.ndarray
    """int64 [n + 1]"""

    def of(self, token: int) -> np.ndarray:
        """The candidate ids of one token, int64 [K]."""
        return self.ids[self.offsets[token] : self.offsets[token + 1]]

    def take(self, tokens: np.ndarray) -> Candidates:
        """Those of some tokens (int64), in that order."""
        count = np.diff(self.offsets)[tokens]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
        where = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][tokens] - offsets[:-1], count)
        return Candidates(self.ids[where].astype(np.int64), offsets)

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """As a table with a row for each token: ids, int64 [n, K], and which of them are there, bool [n, K]."""
        count = np.diff(self.offsets)
        mask = np.arange(count.max(initial=0)) < count[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = self.ids[self.offsets[0] : self.offsets[-1]]
        return ids, mask


def joined_candidates(parts: list[Candidates]) -> Candidates:
    """Several lists end to end."""
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return Candidates(np.concatenate([part.ids for part in parts]).astype(np.int64), np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))


@dataclass
class Turn:
    """A prompt and what was sampled from it, exactly as ids."""

    prompt_ids: np.ndarray
    """int64 [p]"""
    ids: np.ndarray
    """int64 [n], the final EOS or stop id included"""
    logprobs: np.ndarray
    """float32 [n], of the distribution really sampled from"""
    finish: str
    """EOS, STOP or LENGTH"""
    version: int = 0
    """weight version that sampled it"""
    candidates: Candidates | None = None
    """kept candidate ids when top_k, top_p or min_p cut the distribution"""
    trained: np.ndarray | None = field(default=None)
    """bool [n]: tokens to train on; None: all"""
