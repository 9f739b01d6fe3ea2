"""The generator of a run, with what keeps its weights up to date, checked against the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlexp import registry
from rlexp.config.errors import UserError
from rlexp.config.generation import GenerationConfig
from rlexp.config.vllm import EngineGenerationConfig
from rlexp.distributed.collectives import Collectives
from rlexp.distributed.shards import shape_of
from rlexp.generation.base import Generator, Policy, sampling_from
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.generation.weight_sync.sharded import Opened, ShardedWeightSync


def start_generator(
    config: GenerationConfig,
    policies: Mapping[str, Policy],
    ranks: Collectives,
    *,
    autocast: torch.dtype | None,
    folder: Path | None,
    opened: Opened | None = None,
) -> tuple[Generator, WeightSync | None]:
    """The generator, and what brings its weights up to date if it has a copy of its own.

    autocast: dtype of the trainer's forward where it is not that of the weights. folder: of the run; None for an evaluation by hand. opened: given
    where ranks hold parts of the weights. Raises UserError.
    """
    check_stop_ids(config, next(iter(policies.values())).module)
    make = registry.GENERATORS.load(config.name)
    if not isinstance(config, EngineGenerationConfig):
        return make(config, policies=policies), None
    weights = next(next(iter(policies.values())).module.parameters()).dtype
    trainer = TrainerSide(autocast or weights, ranks.rank, ranks.world, folder, ranks.gather_objects)
    generator = make(config, policies=policies, trainer=trainer)
    sends = ranks.rank == 0 or not generator.weights.shared
    if opened is not None:
        return generator, ShardedWeightSync(config, generator, policies, autocast=autocast, sends=sends, ranks=ranks, opened=opened)
    return generator, WeightSync(config, generator, policies, autocast=autocast, sends=sends)


def check_stop_ids(config: GenerationConfig, module: Any) -> None:
    """Refuse stop ids that the model does not have: no completion would ever end there."""
    tokens = shape_of(module.get_input_embeddings().weight)[0]
    unknown = [token for token in sampling_from(config).stop_ids if token >= tokens]
    if unknown:
        raise UserError(f"generation.stop_ids={unknown} are no tokens of the model, whose ids go from 0 to {tokens - 1}: leave them out")
