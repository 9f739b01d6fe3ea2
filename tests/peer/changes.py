"""What tests change in a trainer of either side before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from rlexp.training.trainer import Trainer


def other_reference(other: Path) -> tuple[Callable[[Trainer], None], Callable[[Any], None]]:
    """Functions that give the weights of `other` to the reference of our trainer and of theirs."""
    weights = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32).state_dict()

    def mine(trainer: Trainer) -> None:
        reference: Any = trainer.parts.trainables["policy"].companions["reference"]
        reference.network.module.load_state_dict(weights)

    def peers(trainer: Any) -> None:
        trainer.ref_model.load_state_dict(weights)

    return mine, peers


def sampled_by_vllm(trainer: Any) -> None:
    """What TRL's constructor sets with use_vllm=True, without an engine: the rollouts are fixed, so it would only be told to load weights."""
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)


def counted_forwards() -> tuple[Counter[str], Callable[[Trainer], None], Callable[[Any], None]]:
    """A counter of the policy's forwards, `scoring` (no gradient) and `training`, and functions that let our trainer and theirs count."""
    counts: Counter[str] = Counter()

    def count(backbone: nn.Module) -> None:
        backbone.register_forward_pre_hook(lambda *_: counts.update(["training" if torch.is_grad_enabled() else "scoring"]))

    return counts, lambda trainer: count(trainer.parts.trainables["policy"].network.causal.base_model), lambda trainer: count(trainer.model.base_model)
