"""How much memory an engine in the trainer's process needs (row GRPO-199)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlexp.generation.inference import causal_model

OVERHEAD = 0.05
"""share of the device for activations and captured graphs"""
ROWS = 64
"""rows of full length that run well together; more wait, fewer leave memory unused"""


@dataclass(frozen=True)
class Need:
    """Bytes of an engine."""

    weights: int
    cache_token: int
    """key-value cache of one token"""

    def share(self, context: int, total: int) -> float:
        """The generation.gpu_memory_utilization that holds the weights and ROWS rows of the context; total: bytes of the device. At most 0.95."""
        return min((self.weights + ROWS * context * self.cache_token) / total + OVERHEAD, 0.95)


def need_of(module: nn.Module, dtype: torch.dtype) -> Need:
    """What an engine with this model needs. Models whose attention keeps no plain keys and values need less."""
    causal: Any = causal_model(module)
    config = causal.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(parameter.numel() for name, parameter in causal.named_parameters() if ".lora_" not in name)
    return Need(weights * dtype.itemsize, 2 * config.num_hidden_layers * heads * size * dtype.itemsize)
