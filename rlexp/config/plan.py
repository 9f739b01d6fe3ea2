"""What a run would do, as text: printed by run.dry=true and at the start of a run."""

from __future__ import annotations

from rlexp.config import advice, derived
from rlexp.config.differences import differences
from rlexp.config.run import RunConfig
from rlexp.config.values import text_of


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in rows]


def plan_text(config: RunConfig, tasks: int | None = None) -> str:
    """Derived numbers, what differs from the defaults, and warnings.

    tasks: training tasks once they are loaded; None: what the config tells by itself.
    """
    tasks = derived.task_count(config) if tasks is None else tasks
    lines = ["plan", *_table(derived.plan(config, tasks))]
    changed = [(key, f"{text_of(value)}  (default {text_of(default)})") for key, value, default in differences(config)]
    if changed:
        lines += ["changed", *_table(changed)]
    warnings = advice.warnings(config, tasks)
    if warnings:
        lines += ["warnings", *(f"  {text}" for text in warnings)]
    return "\n".join(lines)
