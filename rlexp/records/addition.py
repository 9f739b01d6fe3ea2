"""The wording of the addition task, in one place: the tiny model is warm-started on exactly what `data=addition` asks."""

from __future__ import annotations


def addition_problem(a: int, b: int) -> tuple[str, str]:
    """Question and answer of a + b, e.g. ("12+34=", "46")."""
    return f"{a}+{b}=", str(a + b)
