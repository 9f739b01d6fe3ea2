"""Whether an engine computes what the trainer computes: log-probs of a fixed text, and which tensors differ when they do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from rlexp.distributed.shards import whole
from rlexp.generation.base import Policy
from rlexp.generation.inference import causal_model, inference
from rlexp.generation.weight_sync import fingerprint
from rlexp.generation.weight_sync.fingerprint import Fingerprint
from rlexp.generation.weight_sync.tensors import PolicyTensors
from rlexp.records.keys import key, uniforms

TOLERANCE = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}
"""Largest difference of one log-prob for equal weights. In half precision two right implementations differ by rounding of every layer; a head or a
layer that was not loaded is off by much more on some token of the probe."""

_LENGTH = 48
_NAMED = 5
"""tensors named in a message"""


def probe_ids(policy: Policy, context: int) -> np.ndarray:
    """The text of the probe: tokens spread over the vocabulary, the same in every run. int64 [n]."""
    tokens = int(causal_model(policy.module).get_input_embeddings().weight.shape[0])
    draws = uniforms(np.array(key(0, "sync probe"), np.uint64), np.arange(min(_LENGTH, context - 1)))
    return (draws * tokens).astype(np.int64)


def trainer_logprobs(policy: Policy, ids: np.ndarray, autocast: torch.dtype | None) -> np.ndarray:
    """Log-probs of ids[1:] under the trainer's weights, as it computes them: float32 [n - 1]."""
    device = next(policy.module.parameters()).device
    tokens = torch.from_numpy(ids).to(device)[None]
    with inference(policy.module), torch.autocast(device.type, autocast) if autocast else nullcontext():
        logits = policy.module(input_ids=tokens, use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].cpu().numpy()


def worst_tensors(tensors: PolicyTensors, copies: Sequence[Mapping[str, Fingerprint]], dtype: torch.dtype) -> list[str]:
    """Tensors that some engine has differently, the worst first, each with its distance. copies: what each engine has; dtype: theirs."""
    allowed = {torch.float32: 1e-4}.get(dtype, 3e-2)
    differences: dict[str, float] = {}

    def compare(name: str, weight: Tensor, shown: str) -> None:
        mine = fingerprint.of(weight.to(dtype))
        differences[shown] = max((fingerprint.distance(mine, engine[name]) for engine in copies if name in engine), default=0.0)

    for name in tensors.names():
        compare(name, tensors.tensor(name), name)
    if tensors.tied_head():
        compare("lm_head.weight", whole(tensors.causal.get_input_embeddings().weight), "lm_head.weight (tied)")
    worst = sorted(differences.items(), key=lambda item: -item[1])[:_NAMED]
    return [f"{name} (differs by {size:.2g})" for name, size in worst if size > allowed]
