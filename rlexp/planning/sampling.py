"""Memory of sampling: the key-value cache and the logits of one step of decoding, or what an engine in this process takes."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PretrainedConfig

from rlexp.config.derived import evaluates
from rlexp.config.generation import ContinuousBatchingGenerationConfig, NativeGenerationConfig, TransformersGenerationConfig
from rlexp.config.run import RunConfig
from rlexp.config.vllm import VLLMGenerationConfig
from rlexp.generation.cache import BLOCK
from rlexp.planning.layout import Layout

Parts = list[tuple[str, dict[str, int], str]]
GIB = 2**30


def parts(config: RunConfig, layout: Layout, architecture: PretrainedConfig, weights: int, cuda: bool, memory: int | None) -> Parts:
    """weights: bytes of the policy. cuda, memory: of the device; its bytes, None where they are unknown."""
    generation = config.generation
    if isinstance(generation, VLLMGenerationConfig):
        return [_engine(generation, weights, cuda, memory)]
    if isinstance(generation, ContinuousBatchingGenerationConfig):
        free = 0 if memory is None else int(generation.max_memory_percent * memory)
        return [("key-value cache", {"generation": free}, f"{generation.max_memory_percent:g} of the device, less where other parts leave less")]
    if not isinstance(generation, (NativeGenerationConfig, TransformersGenerationConfig)):
        return []  # a server's memory is its own
    rows, positions = _wave(config, layout)
    text: Any = architecture.get_text_config()
    number = torch.finfo(getattr(torch, config.model.dtype)).bits // 8
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    one_layer = 2 * rows * positions * heads * size * number
    # while a layer's buffers are copied (rows that leave, room to grow) both copies exist
    cache = one_layer * (text.num_hidden_layers + 1)
    # logits, scores, log-probs, and the cumulative mass in float64
    drawn = rows * text.vocab_size * (number + 4 + 4 + 8)
    return [
        ("key-value cache", {"generation": cache}, f"{rows} rows of {positions} positions"),
        ("sampling", {"generation": drawn}, f"next-token distributions of {rows} rows"),
    ]


def _wave(config: RunConfig, layout: Layout) -> tuple[int, int]:
    """Rows that are decoded at once, and positions of their buffers."""
    wanted = math.ceil(layout.rollouts / layout.ranks)
    if evaluates(config):
        wanted = max(wanted, math.ceil(config.data.eval_size * (1 + config.evaluation.num_generations) / layout.ranks))
    longest = layout.prompts.tokens + layout.completion
    generation = config.generation
    if isinstance(generation, TransformersGenerationConfig):
        return min(wanted, generation.batch_size), longest
    assert isinstance(generation, NativeGenerationConfig)
    rows = max(1, min(wanted, generation.max_wave_tokens // longest))
    return rows, layout.prompts.tokens + BLOCK * math.ceil(layout.completion / BLOCK)


def _engine(generation: VLLMGenerationConfig, weights: int, cuda: bool, memory: int | None) -> tuple[str, dict[str, int], str]:
    """What vLLM takes in this process: a share of a GPU, or its weights and cache on a CPU; while it sleeps, nothing of the GPU."""
    if cuda:
        size, note = (
            int(generation.gpu_memory_utilization * (memory or 0)),
            f"generation.gpu_memory_utilization={generation.gpu_memory_utilization:g} of the device",
        )
        if memory is None:
            note += "; --gpu GIB says how much that is"
    else:
        size, note = (
            weights // generation.tensor_parallel_size + generation.cpu_cache_gib * GIB,
            f"weights and generation.cpu_cache_gib={generation.cpu_cache_gib}",
        )
    awake = {"generation": size}
    if not (cuda and generation.sleep_level):
        awake |= {"update": size, "optimizer step": size}
    return "vllm", awake, note
