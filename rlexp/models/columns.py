"""Columns: pure functions of one chunk of logits. Losses see columns, never logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Chunk:
    """The logits of some loss terms and what belongs to them.

    logits_KV: float32 (float64 for a float64 model), after scale, soft cap and temperature.
    target_K: token ids. candidates_KC, candidates_mask_KC: kept candidate ids, right-padded, when sampling was truncated.
    companion_logits: by companion name, [K, V], without gradient, for the same terms.
    """

    logits_KV: Tensor
    target_K: Tensor
    candidates_KC: Tensor | None = None
    candidates_mask_KC: Tensor | None = None
    companion_logits: dict[str, Tensor] = field(default_factory=dict)


Column = Callable[[Chunk], Tensor]


def logp(chunk: Chunk) -> Tensor:
    """Log-prob of the target, [K].

    Where sampling was truncated (top_k, top_p, min_p) the normaliser runs over the candidate set the token was drawn from, as the
    sampler's did; otherwise every ratio would carry the kept mass as a factor.
    """
    logits = chunk.logits_KV
    target = logits.gather(-1, chunk.target_K[:, None]).squeeze(-1)
    if chunk.candidates_KC is None:
        return target - torch.logsumexp(logits, dim=-1)
    assert chunk.candidates_mask_KC is not None
    kept = logits.gather(-1, chunk.candidates_KC).masked_fill(~chunk.candidates_mask_KC, float("-inf"))
    return target - torch.logsumexp(kept, dim=-1)


def entropy(chunk: Chunk) -> Tensor:
    """Entropy in nats of the next-token distribution over the whole vocabulary, [K]."""
    logits = chunk.logits_KV
    normaliser = torch.logsumexp(logits, dim=-1)
    probability = torch.exp(logits - normaliser[:, None])
    return normaliser - (probability * logits).sum(-1)


COLUMNS: dict[str, Column] = {"logp": logp, "entropy": entropy}
"""Columns a component may ask for by name; a component that needs another adds it here."""
