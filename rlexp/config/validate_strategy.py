"""What does not go together with several processes, or with weights that they hold in parts."""

from __future__ import annotations

from collections.abc import Iterator

from rlexp.config.generation import ContinuousBatchingGenerationConfig, NativeGenerationConfig
from rlexp.config.model import LoraConfig
from rlexp.config.reward import ModelRewardConfig
from rlexp.config.run import RunConfig
from rlexp.config.strategy import DeepSpeedZero3StrategyConfig, ShardedStrategyConfig
from rlexp.config.vllm import EngineGenerationConfig, VLLMGenerationConfig
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
    if isinstance(strategy, DeepSpeedZero3StrategyConfig):
        yield from _zero3(config)
    yield from _generation(config, strategy)


def _zero3(config: RunConfig) -> Iterator[str]:
    instead = "set strategy=fsdp2"
    if isinstance(config.peft, LoraConfig):
        yield f"strategy=deepspeed_zero3 does not go with peft={config.peft.name}, whose reference and teachers are adapters on the same cut weights: {instead}"
    if config.model.cast_lm_head_to_fp32 or config.model.dtype == "float64":
        key = "cast_lm_head_to_fp32=true" if config.model.cast_lm_head_to_fp32 else "dtype=float64"
        yield f"strategy=deepspeed_zero3 computes in one dtype, float32 or bfloat16, so model.{key} does not go with it: leave it out, or {instead}"


def _generation(config: RunConfig, strategy: ShardedStrategyConfig) -> Iterator[str]:
    generation = config.generation
    if isinstance(generation, VLLMServerGenerationConfig) and generation.launch and generation.sync_lora == "adapter":
        yield (
            f"generation.sync_lora=adapter with generation.launch=true starts the server from a file of the whole base model, which no process has under "
            f"strategy={strategy.name}: set generation.sync_lora=merged, or strategy=ddp"
        )
    if (
        config.reward.overlap
        and isinstance(generation, VLLMGenerationConfig)
        and generation.tensor_parallel_size > 1
        and any(isinstance(term, ModelRewardConfig) for term in config.reward.terms.values())
    ):
        share = f"generation.tensor_parallel_size={generation.tensor_parallel_size}"
        yield (
            f"reward.overlap=true does not go with reward=model, strategy={strategy.name} and {share}: processes would exchange parts of the reward "
            "model and of the engine at the same time; leave one out"
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
