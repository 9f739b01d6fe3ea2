"""Optimizers and the learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from rlexp.config.training import AdamWConfig, OptimizerConfig, SGDConfig


def adamw(config: AdamWConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101), one pass over each parameter: torch's default for a CPU takes a pass for each operation, several times as long."""
    first, second = config.betas
    return torch.optim.AdamW(parameters, lr=config.learning_rate, betas=(first, second), eps=config.eps, weight_decay=config.weight_decay, fused=True)


def sgd(config: SGDConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Stochastic gradient descent."""
    return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay)


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The rate of optimizer step `step` (from 0) of `total`: linear warm-up, then constant, linear to 0, or half a cosine to 0.

    The horizon counts optimizer steps, so the last step still learns: linear from 1.6e-5 over 16 steps ends with 1e-6.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    done = (step - config.warmup_steps) / max(total - config.warmup_steps, 1)
    if config.schedule == "linear":
        return config.learning_rate * max(0.0, 1.0 - done)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
