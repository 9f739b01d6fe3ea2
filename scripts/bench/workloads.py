"""What is measured: workloads, goals and the points of the scaling table, all as data. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

TRL_BATCHES = (4, 8, 16, 32, 64)
"""per-device batch sizes that are tried for TRL; the fastest is measured"""
MEAN_SHARE = 0.35
"""mean length of completions over the longest allowed, to which the list of EOS ids is sized"""
THREADS = 2
"""of each process"""

HIGHER, LOWER = ">=", "<="
FIGURES = {
    "update": ("update", HIGHER),
    "generation": ("generation", HIGHER),
    "step": ("whole step", HIGHER),
    "memory": ("peak memory", LOWER),
}
"""key -> (name, which side of a goal is good). Times: TRL's over rlexp's. Memory: rlexp's over TRL's"""


@dataclass(frozen=True)
class Workload:
    """A batch that both sides generate and train on.

    A `random` model is a Qwen3-type network with untied embeddings, of the sizes below; otherwise `model` is an option of rlexp.
    """

    name: str
    title: str
    prompts: int
    """per batch"""
    prompt_tokens: int
    generations: int
    max_new: int
    model: str = "random"
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    vocabulary: int = 1024
    beta: float = 0.0
    iterations: int = 1
    """passes over a batch"""
    lora_rank: int = 0
    row_tokens: int | None = None
    """trainer.tokens_per_microbatch of rlexp; None: its default"""
    pairs: int = 7
    """rounds of A B that are counted, after one that is not"""
    full_trials: bool = True
    """whether a per-device batch is tried on all rollouts, or (slow models) on as few micro-batches as whole groups need"""
    goals: dict[str, float] = field(default_factory=dict)
    """by key of FIGURES"""

    @property
    def rollouts(self) -> int:
        """Completions of a batch."""
        return self.prompts * self.generations

    @property
    def trl_batches(self) -> tuple[int, ...]:
        """Per-device batch sizes that divide the batch."""
        return tuple(size for size in TRL_BATCHES if self.rollouts % size == 0)

    def trial_rollouts(self, size: int) -> int:
        """Rollouts a per-device batch of this size is tried on: a multiple of it and of the group."""
        if self.full_trials:
            return self.rollouts
        return max(size, self.generations)

    @property
    def inputs(self) -> dict[str, object]:
        """What the prepared inputs (model, EOS ids, prompts, adapter) depend on."""
        names = ("model", "hidden", "layers", "heads", "vocabulary", "prompts", "prompt_tokens", "max_new", "lora_rank")
        return {name: getattr(self, name) for name in names}


W1 = Workload(
    "W1",
    "ragged, shared prompt",
    prompts=8,
    prompt_tokens=200,
    generations=8,
    max_new=128,
    goals={"update": 3.5, "generation": 1.5, "step": 2.3, "memory": 0.8},
)
W4 = Workload(
    "W4",
    "a pretrained model of 135 M parameters",
    prompts=4,
    prompt_tokens=150,
    generations=8,
    max_new=96,
    model="smollm2_135m",
    row_tokens=1024,
    pairs=3,
    full_trials=False,
    goals={"update": 2.5, "generation": 1.3, "step": 1.7, "memory": 0.8},
)
WORKLOADS = {
    workload.name: workload
    for workload in (
        W1,
        Workload(
            "W2",
            "long prompt, short answer",
            prompts=2,
            prompt_tokens=800,
            generations=16,
            max_new=32,
            goals={"update": 6.0, "generation": 1.5, "step": 3.0, "memory": 0.7},
        ),
        Workload(
            "W3",
            "short prompt, long ragged answer",
            prompts=8,
            prompt_tokens=32,
            generations=8,
            max_new=512,
            pairs=5,
            goals={"update": 2.0, "generation": 1.6, "step": 1.7, "memory": 0.8},
        ),
        W4,
        dataclasses.replace(W1, name="W5", title="W1 with a KL term and two passes over each batch", beta=0.04, iterations=2, pairs=5, goals={}),
        dataclasses.replace(W4, name="W6", title="LoRA on W4", lora_rank=16, goals={}),
    )
}

_BASE = Workload("scaling", "base of the scaling table", prompts=4, prompt_tokens=64, generations=8, max_new=64, pairs=3)
SCALING = {
    "generations": [dataclasses.replace(_BASE, generations=count) for count in (4, 8, 16, 32)],
    "vocabulary": [dataclasses.replace(_BASE, vocabulary=count, hidden=64) for count in (1024, 16384, 151936)],
    "max_new": [dataclasses.replace(_BASE, max_new=count) for count in (64, 256, 1024)],
}
"""field -> workloads in which it grows"""
SCALING_BATCH = 8
"""TRL's per-device batch there (its default), not searched"""

GEMM_SIZES = (1024, 1536, 2048, 3072, 4096)
"""squares whose best fp32 rate is the machine's limit"""
SHARE_GOAL = 0.5
"""of that rate, for W4's update"""


@dataclass(frozen=True)
class LogitsCase:
    """Forward and backward of the head alone."""

    tokens: tuple[int, ...] = (4096, 8192)
    """the first is compared with TRL; the others must need no more"""
    hidden: int = 64
    vocabulary: int = 150_000
    goal: float = 0.3
    """rlexp's extra bytes over TRL's, at most"""
    flat: float = 1.1
    """bytes at the most tokens over bytes at the fewest, at most"""


LOGITS = LogitsCase()
