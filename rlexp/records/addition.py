"""The wording of the addition task, in one place: the tiny model is warm-started on exactly what `data=addition` asks."""

from __future__ import annotations


def addition_problem(a: int, b: int) -> tuple[str, str]:
    """Question and answer of a + b, e.g. ("12+34=", "46")."""
    return f"{a}+{b}=", str(a + b)


def held_out_operands(a: int, b: int) -> bool:
    """Whether a pair (one in seven, evenly over all digits) is kept for held-out tasks: the tiny model's warm start never sees it."""
    return (a + 3 * b) % 7 == 0
