"""Norm layers of a float64 model in float64.

transformers' RMSNorm computes in float32 whatever the weights' dtype. In a float64 model, used to check exactness, that leaves
rounding of 1e-7 in every gradient and hides real differences.
"""

from __future__ import annotations

import types

import torch
from torch import Tensor, nn


def _forward(self: nn.Module, hidden: Tensor) -> Tensor:
    epsilon: float = self.variance_epsilon  # type: ignore[assignment]
    weight: Tensor = self.weight  # type: ignore[assignment]
    return weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon)


def use_float64_norms(module: nn.Module) -> nn.Module:
    """Make the RMSNorm layers of a float64 model compute in float64; layers of another form are left as they are."""
    for layer in module.modules():
        if type(layer).__name__.endswith("RMSNorm") and hasattr(layer, "variance_epsilon"):
            layer.forward = types.MethodType(_forward, layer)
    return module
