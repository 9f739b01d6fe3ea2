"""What does not go together with several processes, or with weights that they hold in parts."""

from __future__ import annotations

from collections.abc import Iterator

from rlexp.config.generation import ContinuousBatchingGenerationConfig, NativeGenerationConfig
from rlexp.config.run import RunConfig
from rlexp.config.strategy import ShardedStrategyConfig
from rlexp.config.vllm import EngineGenerationConfig
from rlexp.config.vllm_server import VLLMServerGenerationConfig


def problems(config: RunConfig) -> Iterator[str]:
    """Rows GRPO-086, GRPO-264."""
    cluster, strategy = config.cluster, config.strategy
    if strategy.name == "single" and cluster.processes > 1:
        key = "processes_per_node" if cluster.processes_per_node > 1 else "nodes"
        yield f"cluster.{key}={getattr(cluster, key)} needs a strategy for several processes: strategy=ddp"
    if not isinstance(strategy, ShardedStrategyConfig):
        return
    if config.model.compile:
        yield f"model.compile=true does not go with strategy={strategy.name}, whose layers are gathered between compiled parts: leave one out"
    yield from _generation(config, strategy)


def _generation(config: RunConfig, strategy: ShardedStrategyConfig) -> Iterator[str]:
    generation = config.generation
    if isinstance(generation, VLLMServerGenerationConfig) and generation.launch and generation.sync_lora == "adapter":
        yield (
            f"generation.sync_lora=adapter with generation.launch=true starts the server from a file of the whole base model, which no process has under "
            f"strategy={strategy.name}: set generation.sync_lora=merged, or strategy=ddp"
        )
    if strategy.gather_for_generation:
        return
    off = "strategy.gather_for_generation=false"
    if isinstance(generation, EngineGenerationConfig):
        yield f"{off} is for the trainer's own model, and generation={generation.name} samples from a copy of its own: leave it out"
    if isinstance(generation, ContinuousBatchingGenerationConfig):
        yield f"{off} does not go with generation=continuous_batching, whose forwards run in a thread of its own: set generation=native"
    if isinstance(generation, NativeGenerationConfig) and generation.cuda_graphs:
        yield f"{off} does not go with generation.cuda_graphs=true: a graph cannot gather weights; leave one out"
    if config.reward.overlap:
        yield f"{off} does not go with reward.overlap=true, which samples in a thread of its own: leave one out"
