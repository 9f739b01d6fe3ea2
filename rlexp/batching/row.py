"""One row: samples packed into a single sequence as a prefix trie in depth-first order.

Sorted sequences visit their trie depth first: sample k shares its longest common prefix with sample k - 1 and adds the rest. A
position attends to its ancestors only: position i sees j exactly if j <= i < end_T[j], where end_T[j] is one past the last position
below j. A prefix that samples share is therefore forwarded once, and no sample sees another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Branch:
    """One token sequence of a row and where its loss terms are predicted."""

    ids: np.ndarray
    """int64, up to the last position that predicts a term: what follows need not be forwarded"""
    position_L: np.ndarray
    term_L: np.ndarray
    """int64, indices of its terms in the batch's flat arrays"""

    @classmethod
    def of(cls, ids: np.ndarray, position_L: np.ndarray, term_L: np.ndarray) -> Branch:
        """A branch from a whole sequence; the part behind the last predicting position is cut off."""
        end = int(position_L[-1]) + 1 if len(position_L) else 1
        return cls(np.asarray(ids[:end], np.int64), np.asarray(position_L, np.int64), np.asarray(term_L, np.int64))


@dataclass
class Row:
    """What one process forwards at once, for one model."""

    model: str
    ids_T: np.ndarray
    """int64 token ids"""
    depth_T: np.ndarray
    """int64 position ids: the depth in the trie, i.e. the place in the sample alone"""
    end_T: np.ndarray
    """int64, one past the last position below this one"""
    position_L: np.ndarray
    """int64, the position that predicts each term"""
    term_L: np.ndarray
    """int64, index of each term in the batch's flat arrays, ascending"""

    @property
    def tokens(self) -> int:
        """Forwarded positions."""
        return len(self.ids_T)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix of two id arrays."""
    n = min(len(a), len(b))
    different = np.nonzero(a[:n] != b[:n])[0]
    return int(different[0]) if len(different) else n


def sort_key(ids: np.ndarray) -> bytes:
    """A key whose byte order is the lexicographic order of non-negative ids."""
    return np.asarray(ids, dtype=">u4").tobytes()


def trie_order(branches: Sequence[Branch]) -> list[int]:
    """Indices of the branches in lexicographic order of their ids: the depth-first order of their trie."""
    return sorted(range(len(branches)), key=lambda i: (sort_key(branches[i].ids), i))


def build_row(model: str, branches: Sequence[Branch]) -> Row:
    """Pack branches into one trie. Terms come out in ascending order of their batch index, so that a companion's row for the same
    samples lists them alike."""
    ids, depths, positions = [], [], []
    end_T = np.zeros(sum(len(branch.ids) for branch in branches), np.int64)
    total, path, previous = 0, np.zeros(0, np.int64), np.zeros(0, np.int64)
    ordered = [branches[i] for i in trie_order(branches)]
    for branch in ordered:
        shared = common_prefix(previous, branch.ids)
        end_T[path[shared:]] = total
        path = np.concatenate([path[:shared], np.arange(total, total + len(branch.ids) - shared, dtype=np.int64)])
        ids.append(branch.ids[shared:])
        depths.append(np.arange(shared, len(branch.ids), dtype=np.int64))
        positions.append(path[branch.position_L])
        total += len(branch.ids) - shared
        previous = branch.ids
    end_T[path] = total
    term_L = np.concatenate([branch.term_L for branch in ordered])
    order = np.argsort(term_L, kind="stable")
    return Row(
        model=model,
        ids_T=np.concatenate(ids),
        depth_T=np.concatenate(depths),
        end_T=end_T[:total],
        position_L=np.concatenate(positions)[order],
        term_L=term_L[order],
    )
