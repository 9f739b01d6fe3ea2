"""How many samples pass through each position of a row: a shared prefix is forwarded once but belongs to several."""

from __future__ import annotations

import numpy as np

from rlexp.batching.row import Row
from rlexp.batching.terms import Terms


def samples_through(row: Row, terms: Terms) -> np.ndarray:
    """Samples that a position is part of, int64 [T]: their sum is what the samples would have if each were forwarded alone.

    A sample ends where its last term is predicted, and a position is part of it when that place lies at or below the position.
    """
    if not len(row.term_L):
        return np.zeros(row.tokens, np.int64)
    sample_L = terms.sample_L[row.term_L]
    last = np.append(np.flatnonzero(np.diff(sample_L)), len(sample_L) - 1)
    ends_T = np.bincount(row.position_L[last], minlength=row.tokens)
    before_T = np.concatenate([[0], np.cumsum(ends_T)])
    return before_T[row.end_T] - before_T[:-1]
