"""One helper to declare a config field: its default, documentation and bounds in one place.

Hydra 1.3 accepts no Union, Literal or frozen dataclass in a schema, so bounds and choices live in the field's metadata and
`problems_of` checks them once, for values from the command line, YAML and saved files alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from omegaconf import MISSING

REQUIRED = MISSING
"""Default of a field that the user (or the YAML option) must set."""


def option(
    default: Any = None,
    doc: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[str, ...] = (),
    aliases: dict[str, str] | None = None,
    fix: str = "",
) -> Any:
    """A dataclass field with documentation and bounds.

    default: the value, or a list / dict (copied for each instance). doc: one sentence for the reference page. ge, gt, le, lt:
    numeric bounds (of each item, for a list). choices: allowed strings. aliases: other spellings (in lower case) of a choice. fix:
    what to do about a wrong value, for the message.
    """
    metadata = {"doc": doc, "ge": ge, "gt": gt, "le": le, "lt": lt, "choices": choices, "aliases": aliases or {}, "fix": fix}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(factory: Any, doc: str = "") -> Any:
    """A nested config section whose dataclass is known (no choice of options)."""
    return dataclasses.field(default_factory=factory, metadata={"doc": doc})


def rule_of(metadata: Any) -> str:
    """The bounds of a field in words, e.g. `> 0 and <= 1`; empty when it has none."""
    symbols = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
    parts = [f"{symbol} {metadata[key]:g}" for key, symbol in symbols if metadata.get(key) is not None]
    if metadata.get("choices"):
        parts.append("one of " + ", ".join(metadata["choices"]))
    return " and ".join(parts)


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """All leaf fields below a config dataclass as (dotted key, field, value), through sections and dicts of sections."""
    for field in dataclasses.fields(config):
        key = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, key + ".")
        elif isinstance(value, dict) and any(dataclasses.is_dataclass(item) for item in value.values()):
            for name, item in value.items():
                yield from walk(item, f"{key}.{name}.")
        else:
            yield key, field, value


def _breaks_rule(value: Any, metadata: Any) -> bool:
    if metadata.get("choices") and value not in metadata["choices"]:
        return True
    bounds = [metadata.get(key) for key in ("ge", "gt", "le", "lt")]
    if all(bound is None for bound in bounds):
        return False
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return True
    ge, gt, le, lt = bounds
    return (ge is not None and value < ge) or (gt is not None and value <= gt) or (le is not None and value > le) or (lt is not None and value >= lt)


def problems_of(config: Any, prefix: str = "") -> list[str]:
    """One sentence for each field whose value breaks its bounds or choices, with the full key and the rule."""
    problems = []
    for key, field, value in walk(config, prefix):
        if value == REQUIRED and isinstance(value, str):
            problems.append(f"{key} is not set: {field.metadata.get('doc', '')}".rstrip(": "))
            continue
        if value is None or not field.metadata:
            continue
        items = value if isinstance(value, (list, tuple)) else [value]
        if any(_breaks_rule(item, field.metadata) for item in items):
            hint = f" ({field.metadata['fix']})" if field.metadata.get("fix") else ""
            problems.append(f"{key}={value} is out of range: it must be {rule_of(field.metadata)}{hint}")
    return problems
