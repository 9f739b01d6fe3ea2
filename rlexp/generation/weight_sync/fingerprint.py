"""Two numbers that tell whether two copies of a weight are the same.

An engine may keep a matrix only as a packed kernel, so a matrix is known by what it does: the product with a fixed vector. Imports torch alone,
so that an engine's process can use it too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Fingerprint = tuple[float, float]
"""(sum, sum of squares) in float64 of a vector, or of a matrix times `direction`"""


def direction(size: int) -> Tensor:
    """A fixed vector with entries of either sign: float64 [size]."""
    place = torch.arange(1, size + 1, dtype=torch.float64)
    return torch.cos(place * math.sqrt(2)) + torch.sin(place * math.sqrt(3)) / 2


def of(weight: Tensor) -> Fingerprint:
    """The fingerprint of a weight."""
    return of_product(product(weight))


@torch.no_grad()
def product(weight: Tensor) -> Tensor:
    """The weight times the direction along its last axis, or a vector itself; computed in float32 or wider."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    return wide if wide.dim() < 2 else wide @ direction(wide.shape[-1]).to(wide)


def of_product(values: Tensor) -> Fingerprint:
    """The fingerprint of a weight whose product is known."""
    wide = values.double()
    return float(wide.sum()), float(wide.square().sum())


def distance(mine: Fingerprint, other: Fingerprint) -> float:
    """How far apart two fingerprints are, relative to their size; 0 for equal ones."""
    scale = math.sqrt(max(mine[1], other[1])) + 1e-12
    return max(abs(mine[0] - other[0]) / scale, abs(mine[1] - other[1]) / scale**2)
