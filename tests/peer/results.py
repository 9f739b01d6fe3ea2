"""What a training run of either side leaves, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

COSINE, NORM = 0.999999, 1e-5
"""how near the gradients of one step in float32 must be"""


@dataclass
class Steps:
    """Gradient and metrics of each optimizer step, in order."""

    gradients: list[Tensor] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)

    def take(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Keep the gradient as it is now, in order of names; 0 where there is none."""
        parts = {name: torch.zeros_like(p) if p.grad is None else p.grad.detach() for name, p in parameters}
        self.gradients.append(torch.cat([parts[name].flatten().double() for name in sorted(parts)]))


def cosine(mine: Tensor, theirs: Tensor) -> float:
    """Cosine of the angle between two gradients."""
    return float(mine @ theirs / (mine.norm() * theirs.norm()))


def distance(mine: Tensor, theirs: Tensor) -> float:
    """Difference of the norms, relative to theirs."""
    return float((mine.norm() - theirs.norm()).abs() / theirs.norm())


def assert_same(mine: Tensor, theirs: Tensor) -> None:
    """The same gradient, not one of them zero."""
    assert theirs.norm() > 1e-3
    assert cosine(mine, theirs) >= COSINE, (cosine(mine, theirs), float(mine.norm()), float(theirs.norm()))
    assert distance(mine, theirs) <= NORM, (float(mine.norm()), float(theirs.norm()))
