"""A row's attention as tiles: runs of positions with exactly the keys they can see, so that no work is done between branches.

A dense T x T mask costs T^2 although most of it is masked: 8 prompts of 200 tokens with 8 completions of 45 have 3,129 positions but see
0.15 million pairs of 9.8 million. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

OVERHEAD = 6000
"""Pairs (query, key) that cost as much as one more tile. Seen on two CPU cores: a tile costs about 90 microseconds beside its pairs,
a pair 13 nanoseconds (4 heads of 32)."""
LONGEST = 256
"""Queries of a tile that continues an edge: a masked kernel computes the keys behind each query too, which cutting saves."""


@dataclass(frozen=True)
class Tile:
    """Positions start:stop attend to the positions of `keys`, in that order, of which they are the last."""

    start: int
    stop: int
    keys: tuple[tuple[int, int], ...]
    """ranges of positions, ascending; the last one ends at stop"""
    chain: bool
    """each query sees all keys up to itself; otherwise the tile holds several branches"""

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.stop - self.start

    @property
    def width(self) -> int:
        """Number of keys."""
        return sum(stop - start for start, stop in self.keys)

    @property
    def key_index(self) -> np.ndarray:
        """Positions of the keys, int64 [width]."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.keys])


@dataclass
class _Edge:
    """A maximal run of positions without a fork, [start, stop); its subtree ends at `end`."""

    start: int
    stop: int
    end: int
    offset: int
    """ancestors of its first position"""
    best: float = 0.0
    """least cost of its subtree"""
    groups: list[tuple[_Edge, ...]] | None = None
    """how its children are joined to tiles; None: the whole subtree is one tile"""


def _edges(end_T: np.ndarray, depth_T: np.ndarray) -> list[_Edge]:
    fork = (depth_T[1:] != depth_T[:-1] + 1) | (end_T[1:] != end_T[:-1])
    starts = np.concatenate([[0], np.flatnonzero(fork) + 1])
    stops = np.append(starts[1:], len(end_T))
    return [_Edge(*numbers) for numbers in zip(starts.tolist(), stops.tolist(), end_T[starts].tolist(), depth_T[starts].tolist(), strict=True)]


def _cost(queries: int, offset: int, overhead: float) -> float:
    return overhead + queries * (offset + queries)


def _join(children: list[_Edge], overhead: float) -> tuple[list[tuple[_Edge, ...]], float]:
    """Neighbouring subtrees share a tile where that is cheaper than one more tile. Returns the groups and their cost."""
    groups: list[tuple[_Edge, ...]] = []
    total, size, cost = 0.0, 0, 0.0
    for child in children:
        length = child.end - child.start
        joined = _cost(size + length, child.offset, overhead)
        if size and joined <= cost + child.best:
            groups[-1] += (child,)
            total, size, cost = total + joined - cost, size + length, joined
        else:
            groups.append((child,))
            size, cost = (length, child.best) if child.groups is None else (0, child.best)
            total += cost
    return groups, total


def _plan(edges: list[_Edge], overhead: float) -> list[tuple[_Edge, ...]]:
    """Cheapest tiles bottom up; returns the groups of the top level."""
    at = {edge.start: edge for edge in edges}

    def children(start: int, end: int) -> list[_Edge]:
        found = []
        while start < end:
            found.append(at[start])
            start = at[start].end
        return found

    for edge in reversed(edges):
        groups, below = _join(children(edge.stop, edge.end), overhead)
        split = _cost(edge.stop - edge.start, edge.offset, overhead) + below
        whole = _cost(edge.end - edge.start, edge.offset, overhead)
        edge.best = min(split, whole)
        edge.groups = groups if split < whole or not groups else None
    return _join(children(0, edges[-1].end), overhead)[0]


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    made: list[tuple[int, int]] = []
    for start, stop in ranges:
        if made and made[-1][1] == start:
            made[-1] = (made[-1][0], stop)
        else:
            made.append((start, stop))
    return tuple(made)


def _chain(edge: _Edge, path: list[tuple[int, int]], longest: int) -> list[Tile]:
    """Tiles of one edge. An edge without ancestors is one tile: the causal kernel skips what is behind a query by itself."""
    step = longest if edge.offset else edge.stop - edge.start
    stops = [min(start + step, edge.stop) for start in range(edge.start, edge.stop, step)]
    starts = [edge.start, *stops[:-1]]
    return [Tile(start, stop, _merged([*path, (edge.start, stop)]), chain=True) for start, stop in zip(starts, stops, strict=True)]


def tiles_of(end_T: np.ndarray, depth_T: np.ndarray, *, overhead: float, longest: int) -> list[Tile]:
    """Tiles that cover each position of a row once, in order of their positions.

    end_T, depth_T: int64 [T] of a `Row`. overhead: pairs that one tile costs; 0 gives one tile for each run between forks, so that
    every tile is a chain. longest: most queries of a chain that has ancestors.
    """
    made: list[Tile] = []
    waiting: list[tuple[tuple[_Edge, ...], list[tuple[int, int]]]] = [(group, []) for group in reversed(_plan(_edges(end_T, depth_T), overhead))]
    while waiting:
        group, path = waiting.pop()
        first, last = group[0], group[-1]
        if len(group) == 1 and first.groups is not None:
            made.extend(_chain(first, path, longest))
            below = [*path, (first.start, first.stop)]
            waiting.extend((inner, below) for inner in reversed(first.groups))
        else:
            made.append(Tile(first.start, last.end, _merged([*path, (first.start, last.end)]), chain=False))
    return made
