"""Metrics as sums, so that they add up over micro-batches, ranks and steps without means of means."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEAN, SUM, MIN, MAX = "mean", "sum", "min", "max"


@dataclass
class Stat:
    """One partial metric. kind MEAN: value is a sum and count its weight; SUM, MIN, MAX: value alone counts."""

    kind: str
    value: float
    count: float = 1.0

    def merge(self, other: Stat) -> Stat:
        """The metric of both parts together."""
        if self.kind != other.kind:
            raise ValueError(f"cannot merge a {self.kind} metric with a {other.kind} metric")
        if self.kind == MIN:
            return Stat(MIN, min(self.value, other.value))
        if self.kind == MAX:
            return Stat(MAX, max(self.value, other.value))
        return Stat(self.kind, self.value + other.value, self.count + other.count)

    def result(self) -> float:
        """The metric's value; NaN for a mean, minimum or maximum over nothing (value inf or -inf, which merges as neutral)."""
        if self.kind == MEAN:
            return self.value / self.count if self.count else math.nan
        if (self.kind == MIN and self.value == math.inf) or (self.kind == MAX and self.value == -math.inf):
            return math.nan
        return self.value
