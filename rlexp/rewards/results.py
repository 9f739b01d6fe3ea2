"""What a reward may return."""

from __future__ import annotations

import math
import numbers
from typing import Any

from rlexp.rewards.errors import RewardError


def checked(name: str, values: Any, expected: int) -> list[float | None]:
    """The values of a reward, one float or None for each completion.

    A list, tuple, array or tensor of numbers is accepted. Raises RewardError naming the reward for another type or length, for a
    value that is no number, and for NaN or infinity (None means no score).
    """
    if not isinstance(values, (list, tuple)) and hasattr(values, "tolist"):
        values = values.tolist()
    rule = "a reward returns a list with one float or None for each completion"
    if not isinstance(values, (list, tuple)):
        raise RewardError(name, f"reward '{name}' returned {type(values).__name__}, expected {expected} values: {rule} (reward.terms.{name})")
    if len(values) != expected:
        raise RewardError(name, f"reward '{name}' returned {len(values)} values, expected {expected}: {rule} (reward.terms.{name})")
    return [_number(name, value, row) for row, value in enumerate(values)]


def _number(name: str, value: Any, row: int) -> float | None:
    if value is None:
        return None
    if getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise RewardError(
            name,
            f"reward '{name}' returned {value!r} ({type(value).__name__}) for completion {row}: expected a float, or None for no score (reward.terms.{name})",
        )
    if not math.isfinite(value):
        raise RewardError(
            name, f"reward '{name}' returned {float(value)} for completion {row}: expected a finite number, or None for no score (reward.terms.{name})"
        )
    return float(value)
