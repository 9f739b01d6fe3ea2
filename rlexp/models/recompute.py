"""`trainer.gradient_checkpointing`: activations that are computed again in the backward instead of being kept."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_KEPT = {
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
}
"""what selective recomputation keeps: products and attention, which are most of the time; norms, rotations and gates are most of the memory"""


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def recompute_activations(module: Any, mode: str) -> None:
    """Make a transformers model (or a peft model around one) keep less per layer. mode: "full" keeps a layer's input only (Chen et al. 2016,
    arXiv 1604.06174), "selective" keeps matrix products and attention too (Korthikanti et al. 2022, arXiv 2205.05198, sec. 5)."""
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    module.enable_input_require_grads()
