"""Which requirement rows have a test: python scripts/rows.py GRPO-013...022 GRPO-112 [--cases S01 S03...S07]

Reads the markers `rows(...)` and `cases(...)` of the tests; prints the covered ones with their files, then the missing ones.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"


def marked() -> dict[str, set[str]]:
    """Row or case id -> test files that name it in a marker."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("rows", "cases"):
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        for name in expand(argument.value):
                            found[name].add(str(path.relative_to(TESTS.parent)))
    return found


def expand(text: str) -> list[str]:
    """GRPO-013...016 -> the four names; one name stays as it is."""
    match = re.fullmatch(r"([A-Z]+-?)(\d+)(?:\.\.\.|…)(?:[A-Z]+-?)?(\d+)", text)
    if not match:
        return [text]
    prefix, first, last = match.groups()
    return [f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def main() -> int:
    """Print the table; exit code 1 when a wanted row has no test."""
    found = marked()
    wanted = [name for text in sys.argv[1:] if not text.startswith("--") for name in expand(text)] or sorted(found)
    missing = [name for name in wanted if name not in found]
    for name in wanted:
        if name in found:
            print(f"{name:10} {', '.join(sorted(found[name]))}")
    print(f"{len(wanted) - len(missing)} of {len(wanted)} covered" + (f"; missing: {', '.join(missing)}" if missing else ""))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
