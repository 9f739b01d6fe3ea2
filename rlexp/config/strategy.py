"""Group `strategy`: how the model is spread over processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlexp.config.fields import option


@dataclass
class StrategyConfig:
    """One process."""

    name: str = option("single", "How the model is spread over processes")


@dataclass
class RanksStrategyConfig(StrategyConfig):
    """What every strategy of several processes has."""

    timeout: float = option(1800.0, "Seconds a collective may wait", gt=0)


@dataclass
class DDPStrategyConfig(RanksStrategyConfig):
    """A copy of the model in each process, gradients averaged (torch DistributedDataParallel)."""

    name: str = "ddp"


@dataclass
class ShardedStrategyConfig(RanksStrategyConfig):
    """What strategies have that give each process a part of every weight."""

    gather_for_generation: bool = option(
        True, "Hold whole weights on every process while the trainer's own model samples; false: one layer at a time, for models larger than a device (slow)"
    )


@dataclass
class FSDP2StrategyConfig(ShardedStrategyConfig):
    """Weights, gradients and optimizer state cut into as many parts as there are processes, a layer whole at a time (torch fully_shard)."""

    name: str = "fsdp2"


@dataclass
class DeepSpeedZero3StrategyConfig(ShardedStrategyConfig):
    """Weights, gradients and optimizer state cut into as many parts as there are processes, by DeepSpeed (ZeRO stage 3)."""

    name: str = "deepspeed_zero3"
    offload: str = option("none", "What lies in main memory between its uses: none, optimizer, or all (weights too)", choices=("none", "optimizer", "all"))


def engine_config(config: DeepSpeedZero3StrategyConfig, *, bf16: bool) -> dict[str, Any]:
    """The configuration that DeepSpeed is given. bf16: layers compute in bfloat16; the optimizer's weights are float32 either way."""
    zero: dict[str, Any] = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "stage3_gather_16bit_weights_on_model_save": False}
    if config.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,  # a row; how many make a step is told before each backward
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # optimizer.max_grad_norm is told before each step
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    }
