"""Groups `optimizer`, `trainer`, `evaluation`, `checkpoint`, `tracker`: how the loop runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from rlexp.config.fields import REQUIRED, option


@dataclass
class OptimizerConfig:
    """What every optimizer has."""

    name: str = option(REQUIRED, "The optimizer")
    learning_rate: float = option(1e-6, "Peak learning rate", ge=0)
    weight_decay: float = option(0.0, "Decoupled weight decay", ge=0)
    max_grad_norm: Optional[float] = option(1.0, "Clip the gradient to this norm; null: no clipping", gt=0)
    schedule: str = option("linear", "Learning rate after the warm-up", choices=("constant", "linear", "cosine"))
    warmup_steps: int = option(0, "Steps of linear warm-up", ge=0)


@dataclass
class AdamWConfig(OptimizerConfig):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101)."""

    name: str = "adamw"
    betas: List[float] = option([0.9, 0.999], "Decay of the two moments", ge=0, lt=1)
    eps: float = option(1e-8, "Added to the root of the second moment", gt=0)


@dataclass
class SGDConfig(OptimizerConfig):
    """Plain stochastic gradient descent."""

    name: str = "sgd"
    momentum: float = option(0.0, "Momentum", ge=0, lt=1)


@dataclass
class TrainerConfig:
    """How long to train and how a step is cut."""

    max_steps: Optional[int] = option(None, "Optimizer steps; null: trainer.epochs decides", ge=1)
    epochs: float = option(1.0, "Passes over the training tasks when max_steps is null", gt=0)
    steps_per_batch: int = option(1, "Optimizer steps made from one generation batch", ge=1)
    tokens_per_microbatch: int = option(8192, "Most tokens one process forwards at once", ge=8)
    oversize_samples: str = option(
        "error", "A sample longer than tokens_per_microbatch: refuse at start when one is possible, or drop it whole", choices=("error", "drop")
    )
    precision: str = option("auto", "Autocast of the forward: auto is bf16 on a GPU and fp32 on a CPU", choices=("auto", "fp32", "bf16"))
    gradient_checkpointing: bool = option(False, "Recompute activations in the backward to save memory")
    recompute: str = option(
        "full",
        "With gradient_checkpointing: full keeps a layer's input only; selective keeps matrix products and attention, and costs hardly any time",
        choices=("full", "selective"),
    )
    logits_chunk: int = option(256, "Loss terms whose logits exist at once", ge=1)
    threads: Optional[int] = option(None, "CPU threads of torch in each process; null: the cores divided by the processes", ge=1)


@dataclass
class EvaluationConfig:
    """Evaluation on the held-out tasks. The option none switches it off."""

    name: str = option("default", "default or none", choices=("default", "none"))
    steps: Optional[int] = option(None, "Evaluate every so many steps; null: only at start and end", ge=1)
    at_start: bool = option(True, "Evaluate before the first step")
    num_generations: int = option(0, "Sampled completions per task beside the greedy one, for pass@k; 0: greedy only", ge=0)
    temperature: float = option(1.0, "Temperature of the sampled completions; 0 is greedy", ge=0)
    accuracy: Optional[str] = option(None, "Reward term whose value 1.0 counts as correct; null: the first")


@dataclass
class CheckpointConfig:
    """What is saved and kept. The option none writes the final model only."""

    name: str = option("default", "default or none", choices=("default", "none"))
    steps: int = option(50, "Save every so many steps", ge=1)
    keep_last: int = option(2, "Newest checkpoints kept", ge=1)
    keep_best: int = option(1, "Best checkpoints kept beside them", ge=0)
    metric: str = option("accuracy", "Evaluation metric that decides the best; larger is better")


@dataclass
class TrackerTermConfig:
    """What every tracker has."""

    name: str = option(REQUIRED, "The tracker")


@dataclass
class WandbTrackerConfig(TrackerTermConfig):
    """Weights & Biases."""

    name: str = "wandb"
    project: str = option("rlexp", "Project")
    entity: Optional[str] = option(None, "Team or user")
    mode: str = option("online", "online or offline", choices=("online", "offline"))
    group: Optional[str] = option(None, "Group of runs; null: the sweep's name")
    tags: List[str] = option([], "Tags")


@dataclass
class TensorboardTrackerConfig(TrackerTermConfig):
    """TensorBoard event files in the run folder."""

    name: str = "tensorboard"


@dataclass
class TrackerConfig:
    """Trackers beside metrics.jsonl and the console, chosen by tracker=[wandb,tensorboard] or none."""

    terms: Dict[str, Any] = option({}, "The trackers (a TrackerTermConfig each)")
    steps: int = option(1, "Send every so many steps to the trackers (metrics.jsonl has every step)", ge=1)
    rollout_steps: int = option(10, "Write rollouts/*.parquet every so many steps", ge=1)
    completions: int = option(0, "Completions printed on the console with each logged step", ge=0)
    timeout: float = option(8.0, "Seconds a call of a tracker may take before it is left behind", gt=0)
