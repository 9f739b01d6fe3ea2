"""Groups `generation` and `rollout`: how completions are sampled, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional

from rlexp.config.fields import REQUIRED, option


@dataclass
class GenerationConfig:
    """What every generator has. A model's own generation_config gives EOS ids only, never sampling settings.

    free_arguments: whether generation_kwargs may hold arguments of the backend that have no key here. own_numerics: whether its
    log-probs differ from the trainer's for equal weights, so that correction=auto corrects. candidates: which of the tokens that
    top_k, top_p and min_p left to choose from come with each sampled token, so that the trainer normalises over the same ones: all of
    them, the top_k most probable ones at most, or none. scores: whether it tells the log-probs of given ids under its weights, for
    algorithm.use_teacher_server.
    """

    free_arguments: ClassVar[bool] = False
    own_numerics: ClassVar[bool] = False
    candidates: ClassVar[str] = "none"
    scores: ClassVar[bool] = False
    name: str = option(REQUIRED, "The generator")
    temperature: float = option(
        1.0, "Sampling temperature in training; greedy decoding is for evaluation only", gt=0, fix="use a small positive value; evaluation.temperature may be 0"
    )
    top_p: float = option(1.0, "Nucleus mass; 1 keeps all tokens", gt=0, le=1)
    top_k: int = option(0, "Keep the k most probable tokens; 0: all", ge=0)
    min_p: Optional[float] = option(None, "Smallest probability relative to the most likely token; null: off", ge=0, le=1)
    repetition_penalty: float = option(1.0, "Above 1 discourages tokens that occurred in prompt or completion", gt=0)
    stop: List[str] = option([], "Strings that end a completion; they stay part of it")
    stop_ids: List[int] = option([], "Token ids that end a completion beside the EOS ids", ge=0)
    on_missing_logprob: str = option(
        "stop", "When the sampler gives no log-prob (None or NaN) for a token: stop the run, or take the token out of the loss", choices=("stop", "mask")
    )
    generation_kwargs: Any = option(None, "Further arguments of the backend, as a dict or a JSON string; they beat the keys above")
    chat_template_kwargs: Any = option(None, "Arguments of the chat template, as a dict or a JSON string, e.g. {enable_thinking: false}")


@dataclass
class NativeGenerationConfig(GenerationConfig):
    """Our sampler in the trainer's process: one prefill per distinct prompt, finished rows leave the batch."""

    candidates: ClassVar[str] = "all"
    name: str = "native"
    max_wave_tokens: int = option(65536, "Most key-value cache positions held at once (rows x longest possible length)", ge=64)
    cuda_graphs: bool = option(
        False, "Decode in steps of one shape that a GPU replays as CUDA graphs, for small models (not yet run on hardware; no gain on a CPU)"
    )


@dataclass
class TransformersGenerationConfig(GenerationConfig):
    """transformers' generate()."""

    free_arguments: ClassVar[bool] = True
    candidates: ClassVar[str] = "all"
    name: str = "transformers"
    cache_implementation: Optional[str] = option(None, "Key-value cache of generate(), e.g. static; null: its default")
    batch_size: int = option(64, "Completions generated at once", ge=1)


@dataclass
class ContinuousBatchingGenerationConfig(GenerationConfig):
    """transformers' continuous batching: an engine in the trainer's process on its own weights, which takes new rows as others end."""

    name: str = "continuous_batching"
    max_memory_percent: float = option(0.5, "Share of the free GPU memory for the key-value cache; 0.3 to 0.4 when training runs out of memory", gt=0, le=1)
    batching_kwargs: Any = option(None, "Further arguments of transformers' ContinuousBatchingConfig, as a dict or a JSON string, e.g. {use_cuda_graph: false}")


@dataclass
class RolloutConfig:
    """When rollouts are made, and how long they may get."""

    name: str = option(REQUIRED, "The rollout source")
    prompts_per_batch: int = option(8, "Tasks generated together", ge=1)
    max_completion_length: int = option(512, "Longest completion of a whole rollout, in tokens", ge=1)
    max_turn_length: Optional[int] = option(None, "Longest single sampling request; null: what is left of the rollout", ge=1)


@dataclass
class SyncRolloutConfig(RolloutConfig):
    """Generate, then train."""

    name: str = "sync"
    refill: bool = option(False, "Replace groups without signal (equal rewards) by further tasks until the batch is full (DAPO's dynamic sampling)")
    max_refills: int = option(10, "Most further batches that are generated for one; then groups without signal fill it", ge=1)
