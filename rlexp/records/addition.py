"""The wording of the addition task, in one place: the tiny model is warm-started on exactly what `data=addition` asks."""

from __future__ import annotations


def addition_problem(a: int, b: int) -> tuple[str, str]:
    """Question and answer of a + b, e.g. ("12+34=", "46")."""
    return f"{a}+{b}=", str(a + b)


def careless_answer(a: int, b: int) -> str:
    """The answer of one who forgets every carry, e.g. "58+67=" gives "15"; right where there is nothing to carry."""
    digits = max(len(str(a)), len(str(b)))
    columns = [(a // 10**place % 10 + b // 10**place % 10) % 10 * 10**place for place in range(digits)]
    return str(sum(columns))


def held_out_operands(a: int, b: int) -> bool:
    """Whether a pair (one in seven, evenly over all digits) is kept for held-out tasks: the tiny model's warm start never sees it."""
    return (a + 3 * b) % 7 == 0
