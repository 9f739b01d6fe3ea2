"""The whole configuration of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from omegaconf import MISSING

from rlexp.config.algorithm import AlgorithmConfig, LossConfig
from rlexp.config.cluster import ClusterConfig
from rlexp.config.correction import CorrectionConfig
from rlexp.config.data import DataConfig
from rlexp.config.fields import option, section
from rlexp.config.generation import GenerationConfig, RolloutConfig
from rlexp.config.model import ModelConfig, PeftConfig
from rlexp.config.reward import RewardConfig
from rlexp.config.strategy import StrategyConfig
from rlexp.config.sweep import SweepConfig
from rlexp.config.training import (
    CheckpointConfig,
    EvaluationConfig,
    OptimizerConfig,
    TrackerConfig,
    TrainerConfig,
)


@dataclass
class RunSettings:
    """The identity of a run."""

    name: Optional[str] = option(None, "Folder below outputs/; null: experiment-algorithm-loss-model-seed")
    experiment: str = option("none", "Set by the experiment file: its name")
    preset: str = option("none", "Set by the preset file: its name")
    seed: int = option(42, "Seed of everything random", ge=0)
    resume: str = option(
        "auto", "Continue an unfinished run of the same name: auto, never (move the old folder away) or must", choices=("auto", "never", "must")
    )
    start_from: Optional[str] = option(None, "Checkpoint folder whose weights a new run starts from")
    deterministic: bool = option(False, "Bitwise equal runs on CUDA too (slower; always so on a CPU)")
    dry: bool = option(False, "Check everything, print the plan and stop, without loading torch")


@dataclass
class RunConfig:
    """All groups. Defaults live in the dataclasses; YAML holds what an option or experiment changes."""

    run: RunSettings = section(RunSettings)
    model: ModelConfig = MISSING
    peft: PeftConfig = MISSING
    data: DataConfig = MISSING
    reward: RewardConfig = section(RewardConfig)
    generation: GenerationConfig = MISSING
    rollout: RolloutConfig = MISSING
    algorithm: AlgorithmConfig = MISSING
    loss: LossConfig = MISSING
    correction: CorrectionConfig = section(CorrectionConfig)
    optimizer: OptimizerConfig = MISSING
    trainer: TrainerConfig = section(TrainerConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    tracker: TrackerConfig = section(TrackerConfig)
    strategy: StrategyConfig = MISSING
    cluster: ClusterConfig = MISSING
    sweep: SweepConfig = section(SweepConfig)
