"""Group `strategy`: how the model is spread over processes."""

from __future__ import annotations

from dataclasses import dataclass

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
