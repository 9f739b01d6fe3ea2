"""Records of batches to figures: medians, ratios with their range, goals, and the share of the machine's limit. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.bench.workloads import FIGURES, HIGHER, Workload

SELF_RANGE = (0.95, 1.05)
"""of rlexp against rlexp; a run outside is void"""
COSINE_FP32, COSINE_BF16, NORM_TOLERANCE = 0.999999, 0.999, 0.01
"""smallest cosine of the two sides' gradients by dtype, and how far the ratio of their norms may be from 1"""
COUNTS = ("generated", "forwarded", "trained")


@dataclass(frozen=True)
class Figure:
    """One figure of a workload on both sides."""

    key: str
    ours: float
    """median, seconds or bytes"""
    theirs: float
    ratio: float
    """of the medians, the way the goal reads it"""
    low: float
    high: float
    """smallest and largest ratio of a pair"""
    goal: float | None

    @property
    def verdict(self) -> str:
        """ok, below, or - without a goal."""
        if self.goal is None:
            return "-"
        good = self.ratio >= self.goal if FIGURES[self.key][1] == HIGHER else self.ratio <= self.goal
        return "ok" if good else "below"


def figure(key: str, ours: Sequence[float], theirs: Sequence[float], goal: float | None) -> Figure:
    """Values of the same figure in pairs of batches."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    inverse = FIGURES[key][1] != HIGHER
    ratios = [_ratio(a, b, inverse) for a, b in zip(ours, theirs, strict=True)]
    return Figure(key, mine, other, _ratio(mine, other, inverse), min(ratios), max(ratios), goal)


def _ratio(ours: float, theirs: float, inverse: bool) -> float:
    return ours / theirs if inverse else theirs / ours


def figures(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], goals: Mapping[str, float]) -> list[Figure]:
    """All figures of a workload."""
    return [figure(key, [record[key] for record in ours], [record[key] for record in theirs], goals.get(key)) for key in FIGURES]


def void(found: Sequence[Figure]) -> list[str]:
    """The figures of a run of rlexp against itself that are outside of SELF_RANGE."""
    return [FIGURES[one.key][0] for one in found if not SELF_RANGE[0] <= one.ratio <= SELF_RANGE[1]]


def tokens(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median counts of a batch."""
    return {name: statistics.median(record[name] for record in records) for name in COUNTS}


def mean_length(records: Sequence[Mapping[str, Any]], workload: Workload) -> float:
    """Tokens of a completion."""
    return sum(record["generated"] for record in records) / len(records) / workload.rollouts


def same_gradient(record: Mapping[str, Any], cuda: bool) -> bool:
    """Whether the two sides' gradients on the same rollouts agree."""
    return record["cosine"] >= (COSINE_BF16 if cuda else COSINE_FP32) and abs(record["norm_ratio"] - 1) <= NORM_TOLERANCE


@dataclass(frozen=True)
class Work:
    """What an update has to compute at least."""

    non_embedding: int
    """parameters without embeddings and head"""
    layers: int
    attention_width: int
    """heads x head size"""
    hidden: int
    vocabulary: int
    forwarded: float
    """positions of a batch, each pass counted"""
    trained: float
    """positions with a loss"""
    pairs: float
    """(query, key) pairs that attention must look at, per layer and head"""

    @property
    def flops(self) -> float:
        """Forward and backward, a multiply and an add counted as two: 6 per parameter and token, twice the forward for the backward.

        6 N T + 6 D V L for the head at trained positions + 12 (heads x head size) x pairs per layer for the two products of attention.
        Nothing that is computed again is counted.
        """
        head = 6.0 * self.hidden * self.vocabulary * self.trained
        return 6.0 * self.non_embedding * self.forwarded + head + 12.0 * self.layers * self.attention_width * self.pairs


def work_of(about: Mapping[str, Any], record: Mapping[str, Any]) -> Work:
    """about: of the prepared model; record: of a batch on rlexp's side."""
    names = ("non_embedding", "layers", "attention_width", "hidden", "vocabulary")
    return Work(**{name: about[name] for name in names}, forwarded=record["forwarded"], trained=record["trained"], pairs=record["pairs"])


def share_of_limit(about: Mapping[str, Any], records: Sequence[Mapping[str, Any]], rate: float) -> float:
    """Median over batches of (needed FLOPs / seconds of the update) / rate. rate: FLOP/s of the best matrix product."""
    return statistics.median(work_of(about, record).flops / record["update"] / rate for record in records)


def as_dict(found: Sequence[Figure]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**asdict(one), "verdict": one.verdict} for one in found]
