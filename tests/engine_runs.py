"""A random model with a vLLM engine beside it, for the tests in tests/vllm_engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from models_for_tests import tiny_model
from transformers import GenerationConfig

from rlexp.config.model import LoraConfig
from rlexp.config.vllm import VLLMGenerationConfig
from rlexp.generation.vllm.generator import VLLMGenerator
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.models.adapters import lora as with_lora
from rlexp.models.loaded import LoadedModel

NAME = "policy"


@dataclasses.dataclass
class Setup:
    """What a test works with."""

    loaded: LoadedModel
    generator: VLLMGenerator
    sync: WeightSync

    def push(self, version: int) -> None:
        """Send the weights as they are."""
        self.sync.announce(version)
        self.sync.bring()

    @torch.no_grad()
    def train(self, size: float = 0.05, seed: int = 0) -> None:
        """Move every trained weight at random."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.loaded.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * size)

    def gap(self, length: int = 60, seed: int = 0) -> float:
        """Largest difference between engine and model over log-probs of a random text."""
        ids = np.random.default_rng(seed).integers(0, 90, length)
        theirs = self.generator.score(NAME, [ids])[0].logprobs
        with torch.no_grad():
            logits = self.loaded.module(torch.from_numpy(ids)[None]).logits[0, :-1]
        mine = logits.log_softmax(-1).gather(-1, torch.from_numpy(ids[1:])[:, None])[:, 0].numpy()
        return float(np.abs(mine - theirs).max())


def started(
    engines: dict[Any, Any], *, tied: bool, lora: bool, generation_config: GenerationConfig, eos_ids: tuple[int, ...] | None = None, **options: Any
) -> Setup:
    """A model, and a generator on an engine of `engines`, started if there is none that fits."""
    loaded = tiny_model(tied=tied, dtype=torch.float32, spread=2.0, hidden=64, context=320, eos_ids=eos_ids)
    loaded.module.generation_config = generation_config
    if lora:
        loaded = with_lora(loaded, LoraConfig(r=4, alpha=8), seed=0)
    config = VLLMGenerationConfig(**options)
    key = (tied, config.sync_lora, config.model_impl, config.structured_outputs_regex)  # a grammar ends at the EOS ids the engine started with
    running = {NAME: engines[key]} if key in engines else None
    generator = VLLMGenerator(config, policies={NAME: loaded}, trainer=TrainerSide(torch.float32), engines=running)
    engines[key] = generator.engines[NAME]
    return Setup(loaded, generator, WeightSync(config, generator, {NAME: loaded}))
