"""Generators of both local backends, and a reference that scores sampled tokens by a plain forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlexp.config.generation import NativeGenerationConfig, TransformersGenerationConfig
from rlexp.generation.batches import ModelGenerator
from rlexp.generation.native import NativeGenerator
from rlexp.generation.transformers_generate import TransformersGenerator
from rlexp.models.loaded import LoadedModel
from rlexp.records.keys import key
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import Turn

BACKENDS = ("native", "transformers")


def generator_of(backend: str, loaded: LoadedModel | dict[str, LoadedModel], **options: Any) -> ModelGenerator:
    """A generator; one model is the policy named "policy"."""
    policies = loaded if isinstance(loaded, dict) else {"policy": loaded}
    if backend == "native":
        return NativeGenerator(NativeGenerationConfig(**options), policies=policies)
    return TransformersGenerator(TransformersGenerationConfig(**options), policies=policies)


def requests_of(prompts: list[list[int]], max_tokens: int, sampling: Sampling | None = None, *, each: int = 1, seed: int = 1) -> list[Request]:
    """`each` requests for each prompt, keyed by seed, prompt and number."""
    sampling = sampling or Sampling()
    places = [(i, number) for i in range(len(prompts)) for number in range(each)]
    return [Request(np.array(prompts[i]), key(seed, "train", 0, i, number, 0), max_tokens, sampling, order=(0, i, number, 0)) for i, number in places]


@torch.no_grad()
def teacher_forced(module: Any, turn: Turn, sampling: Sampling) -> np.ndarray:
    """Log-probs of a turn's tokens by one unpadded forward without cache: softmax at the temperature, over the turn's candidates."""
    ids = torch.from_numpy(np.concatenate([turn.prompt_ids, turn.ids]))
    logits = module(ids[None]).logits[0, len(turn.prompt_ids) - 1 : -1].double() / sampling.temperature
    if turn.candidates is not None:
        kept = torch.zeros_like(logits, dtype=torch.bool)
        for t in range(len(turn.ids)):
            kept[t, torch.from_numpy(turn.candidates.of(t))] = True
        logits = logits.masked_fill(~kept, -torch.inf)
    return logits.log_softmax(-1).gather(-1, torch.from_numpy(turn.ids)[:, None])[:, 0].numpy()
