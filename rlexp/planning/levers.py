"""What would make a run smaller: each change that the config allows is planned as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlexp.config.errors import UserError
from rlexp.config.generation import NativeGenerationConfig
from rlexp.config.model import LoraConfig
from rlexp.config.run import RunConfig
from rlexp.config.strategy import FSDP2StrategyConfig, ShardedStrategyConfig
from rlexp.config.vllm import VLLMGenerationConfig
from rlexp.planning.memory import Memory

SHOWN = 3
LEAST = 0.03
"""share of the total that a change must save to be named"""


@dataclass(frozen=True)
class Lever:
    """A change of the config and the total with it, in bytes."""

    override: str
    total: int


def levers(memory: Memory, plan: Callable[[RunConfig], Memory]) -> list[Lever]:
    """The changes that save most, most first. plan: makes the plan of a changed config."""
    found = []
    for override, config in _changes(memory):
        try:
            total = plan(config).total
        except UserError:
            continue  # a row that is too short for one rollout, for instance
        if total < (1 - LEAST) * memory.total:
            found.append(Lever(override, total))
    return sorted(found, key=lambda lever: lever.total)[:SHOWN]


def _changes(memory: Memory) -> Iterator[tuple[str, RunConfig]]:
    config, layout = memory.config, memory.layout

    def changed(section: str, **values: Any) -> RunConfig:
        return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})

    if memory.phase == "generation":
        if isinstance(config.generation, NativeGenerationConfig):
            positions = config.generation.max_wave_tokens
            rows = max(1, min(layout.rollouts // layout.ranks, positions // (layout.prompts.tokens + layout.completion)) // 2)
            fewer = max(64, rows * (layout.prompts.tokens + layout.completion))
            yield f"generation.max_wave_tokens={fewer}", changed("generation", max_wave_tokens=fewer)
        if isinstance(config.generation, VLLMGenerationConfig) and memory.device.cuda:
            less = round(config.generation.gpu_memory_utilization / 2, 3)
            yield f"generation.gpu_memory_utilization={less:g}", changed("generation", gpu_memory_utilization=less)
    else:
        half = max(8, layout.row_tokens // 2)
        yield f"trainer.tokens_per_microbatch={half}", changed("trainer", tokens_per_microbatch=half)
        if not config.trainer.gradient_checkpointing:
            yield "trainer.gradient_checkpointing=true", changed("trainer", gradient_checkpointing=True)
        elif config.trainer.recompute != "full":
            yield "trainer.recompute=full", changed("trainer", recompute="full")
    if config.peft.name == "none":
        yield "peft=lora", dataclasses.replace(config, peft=LoraConfig())
    if layout.ranks > 1 and not isinstance(config.strategy, ShardedStrategyConfig):
        yield "strategy=fsdp2", dataclasses.replace(config, strategy=FSDP2StrategyConfig())
    if isinstance(config.generation, VLLMGenerationConfig) and memory.device.cuda and not config.generation.sleep_level:
        yield "generation.sleep_level=1", changed("generation", sleep_level=1)
