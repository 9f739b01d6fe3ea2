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
