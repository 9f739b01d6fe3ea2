"""The state a policy is in while it samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def causal_model(module: Any) -> Any:
    """The transformers model, below a peft wrapper if there is one (whose adapters sit inside it)."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every submodule is in the mode it was in.

    no_grad and not inference_mode: some rotary embeddings store buffers in their forward, and a later backward would refuse
    inference tensors.
    """
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
