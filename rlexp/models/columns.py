"""Columns: pure functions of one chunk of logits. Losses see columns, never logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass
class Chunk:
    """The logits of some loss terms and what belongs to them.

    logits_KV: float32 (float64 for a float64 model), after scale, soft cap and temperature.
    target_K: token ids. candidates_KC, candidates_mask_KC: kept candidate ids, right-padded, when sampling was truncated.
    companion_logits: by companion name, [K, V], without gradient, for the same terms. support_KC: token ids that somebody else chose.
    """

    logits_KV: Tensor
    target_K: Tensor
    candidates_KC: Tensor | None = None
    candidates_mask_KC: Tensor | None = None
    companion_logits: dict[str, Tensor] = field(default_factory=dict)
    support_KC: Tensor | None = None

    @cached_property
    def normaliser_K(self) -> Tensor:
        """log of the sum of exp of the logits, [K], without gradient: shared by the columns."""
        logits = self.logits_KV.detach()
        largest = logits.amax(-1)
        return (logits - largest[:, None]).exp_().sum(-1).log_() + largest


class _LogProb(torch.autograd.Function):
    """logit of the target - normaliser. The gradient takes one buffer of the chunk's size; autograd's own takes five."""

    @staticmethod
    def forward(ctx: Any, logits_KV: Tensor, target_K: Tensor, normaliser_K: Tensor) -> Tensor:
        ctx.save_for_backward(logits_KV, target_K, normaliser_K)
        return logits_KV.gather(-1, target_K[:, None]).squeeze(-1) - normaliser_K

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """d logp / d logit_j = [j is the target] - p_j."""
        logits_KV, target_K, normaliser_K = ctx.saved_tensors
        found_KV = (logits_KV - normaliser_K[:, None]).exp_().mul_(-gradients[0][:, None])
        return found_KV.scatter_add_(-1, target_K[:, None], gradients[0][:, None]), None, None


class _Entropy(torch.autograd.Function):
    """-sum p log p."""

    @staticmethod
    def forward(ctx: Any, logits_KV: Tensor, normaliser_K: Tensor) -> Tensor:
        entropy_K = normaliser_K - (logits_KV - normaliser_K[:, None]).exp_().mul_(logits_KV).sum(-1)
        ctx.save_for_backward(logits_KV, normaliser_K, entropy_K)
        return entropy_K

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """d H / d logit_j = -p_j (log p_j + H)."""
        logits_KV, normaliser_K, entropy_K = ctx.saved_tensors
        logp_KV = logits_KV - normaliser_K[:, None]
        probability_KV = logp_KV.exp()
        return logp_KV.add_(entropy_K[:, None]).mul_(probability_KV).mul_(-gradients[0][:, None]), None


Column = Callable[[Chunk], Tensor]


def log_prob(chunk: Chunk) -> Tensor:
    """Log-prob of the target over the whole vocabulary, [K]."""
    values: Tensor = _LogProb.apply(chunk.logits_KV, chunk.target_K, chunk.normaliser_K)
    return values


def logp(chunk: Chunk) -> Tensor:
    """Log-prob of the target, [K].

    Where sampling was truncated (top_k, top_p, min_p) the normaliser runs over the candidate set the token was drawn from, as the
    sampler's did; otherwise every ratio would carry the kept mass as a factor.
    """
    if chunk.candidates_KC is None:
        return log_prob(chunk)
    assert chunk.candidates_mask_KC is not None
    target = chunk.logits_KV.gather(-1, chunk.target_K[:, None]).squeeze(-1)
    kept = chunk.logits_KV.gather(-1, chunk.candidates_KC).masked_fill(~chunk.candidates_mask_KC, float("-inf"))
    return target - torch.logsumexp(kept, dim=-1)


def entropy(chunk: Chunk) -> Tensor:
    """Entropy in nats of the next-token distribution over the whole vocabulary, [K]."""
    values: Tensor = _Entropy.apply(chunk.logits_KV, chunk.normaliser_K)
    return values


COLUMNS: dict[str, Column] = {"logp": logp, "entropy": entropy}
"""Columns a component may ask for by name. An algorithm brings columns of its own by `Algorithm.own_columns`."""
