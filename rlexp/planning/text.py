"""A memory plan as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rlexp.config.strategy import FSDP2StrategyConfig
from rlexp.planning.levers import Lever
from rlexp.planning.memory import PHASES, Memory


def size_text(size: float) -> str:
    """Bytes for a reader."""
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.1f} MiB" if size < 10 * 2**20 else f"{size / 2**20:.0f} MiB"


def table_text(memory: Memory) -> str:
    """Parts by phase, the total of each phase, and the tokens of a step."""
    config, layout, device = memory.config, memory.layout, memory.device
    rows = [["", *PHASES, ""]]
    for part in memory.parts:
        rows.append([part.name, *(size_text(part.bytes[phase]) if phase in part.bytes else "-" for phase in PHASES), part.note])
    rows.append(["together", *(size_text(memory.of(phase)) for phase in PHASES), ""])
    where = f"{'GPU' if device.cuda else 'CPU'}, {layout.ranks} process{'es' if layout.ranks > 1 else ''}, strategy={config.strategy.name}"
    lines = [f"memory of each device ({where})", *_aligned(rows), f"total  {size_text(memory.total)}, in the {memory.phase}{_share_text(memory)}"]
    per_step = f"{layout.rollouts} rollouts a batch; a step forwards at most {layout.forwarded:,} tokens and trains {layout.trained:,}"
    rows_text = f"{layout.micro_batches} row{'s' if layout.micro_batches > 1 else ''} of {layout.row_tokens:,} tokens"
    lines += [
        f"tokens  {per_step}: {rows_text} on each device",
        f"        prompts of {layout.prompts.tokens} tokens ({layout.prompts.source}), completions of {layout.completion}",
    ]
    if memory.loaded:
        lines.append(f"loading  {_loading_text(memory)}")
    return "\n".join(lines)


def _loading_text(memory: Memory) -> str:
    """Host memory that whole models take at the start under a sharded strategy."""
    if isinstance(memory.config.strategy, FSDP2StrategyConfig):
        return f"rank 0 alone holds whole models, in host memory, until they are cut: {size_text(memory.loaded)}"
    node = memory.loaded * memory.config.cluster.processes_per_node
    return f"each process holds whole models in host memory until they are cut: {size_text(memory.loaded)}, {size_text(node)} on a machine"


def _share_text(memory: Memory) -> str:
    if memory.device.bytes is None:
        return ""
    share = memory.total / memory.device.bytes
    return f": {share:.0%} of {size_text(memory.device.bytes)}" + ("" if share <= 1 else ", which does not fit")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(PHASES) + 1)]
    lines = []
    for name, *cells, note in rows:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append(f"  {name.ljust(widths[0])}  {numbers}  {note}".rstrip())
    return lines


def levers_text(memory: Memory, levers: Sequence[Lever]) -> str:
    """The largest part and what makes the total smaller, most first."""
    largest = max(memory.parts, key=lambda part: part.bytes.get(memory.phase, 0))
    found = f"largest: {largest.name} {size_text(largest.bytes[memory.phase])}"
    if not levers:
        return found
    return found + "; total with " + ", ".join(f"{lever.override} {size_text(lever.total)}" for lever in levers)
