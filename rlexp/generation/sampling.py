"""Logits to tokens: the distribution that is sampled from, and keyed draws from it.

The order is transformers': repetition penalty, temperature, top_k, top_p, min_p. A draw is the inverse of the cumulative
distribution at a number that was hashed from the request's key and the token's index, so that no global random state is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlexp.records.request import Sampling

TIE = 1e-6
"""Nucleus mass counts as reached this close below top_p: a boundary that is exact on paper (.5 + .3 at top_p .8) must not depend
on rounding. transformers and vLLM leave it to rounding."""

_FIRST = 256
"""tokens that are sorted at first for a nucleus"""


@dataclass
class Draw:
    """One token for each row."""

    ids: Tensor
    """int64 [n]"""
    logprobs: Tensor
    """[n], float32 or the logits' float64, of the distribution sampled from"""
    kept: Tensor | None
    """bool [n, V]: the candidates, when top_k, top_p or min_p cut the distribution"""


def penalised(logits_V: Tensor, seen_V: Tensor, penalty: float) -> Tensor:
    """Logits [n, V] with those of tokens seen before (bool [n, V]) divided by the penalty, or multiplied if negative (CTRL, arXiv 1909.05858, sec. 4.1)."""
    changed_V = torch.where(logits_V < 0, logits_V * penalty, logits_V / penalty)
    return torch.where(seen_V, changed_V, logits_V)


def candidates(scores_V: Tensor, sampling: Sampling) -> Tensor:
    """Which tokens top_k, top_p and min_p keep, each applied to what the one before left: bool [n, V], at least one in a row."""
    kept_V = scores_V > -math.inf
    if 0 < sampling.top_k < scores_V.shape[-1]:
        kept_V &= scores_V >= scores_V.topk(sampling.top_k, dim=-1).values[:, -1:]
    if sampling.top_p < 1.0:
        kept_V &= nucleus(scores_V.masked_fill(~kept_V, -math.inf), sampling.top_p)
    if sampling.min_p:
        kept_V &= scores_V >= scores_V.amax(-1, keepdim=True) + math.log(sampling.min_p)
    return kept_V | scores_V.isnan()  # so that a broken model shows in the log-prob


def nucleus(scores_V: Tensor, top_p: float) -> Tensor:
    """The most likely tokens, until their mass reaches top_p (Holtzman et al. 2020, arXiv 1904.09751, sec. 3.1): bool [n, V].

    Among equally likely tokens the lower id goes first. Only as many tokens are sorted as the widest nucleus needs: a sort of the whole
    vocabulary costs more than the forward of a small model.
    """
    normaliser = scores_V.logsumexp(-1, keepdim=True)
    count = min(_FIRST, scores_V.shape[-1])
    while True:
        sorted_K = scores_V.topk(count, dim=-1).values
        probability_K = (sorted_K - normaliser).exp()
        inside_K = probability_K.cumsum(-1) - probability_K < top_p - TIE
        inside_K[:, 0] = True
        if count == scores_V.shape[-1] or not bool(inside_K[:, -1].any()):
            break
        count = min(8 * count, scores_V.shape[-1])
    size = inside_K.sum(-1, keepdim=True)
    least = sorted_K.gather(-1, size - 1)
    above_V, equal_V = scores_V > least, scores_V == least
    room = size - above_V.sum(-1, keepdim=True)
    return above_V | equal_V & (equal_V.cumsum(-1) <= room)


def draw(logits_V: Tensor, sampling: Sampling, uniform: Tensor, seen_V: Tensor | None = None) -> Draw:
    """One token for each row.

    logits_V: [n, V]. uniform: float64 [n] in [0, 1), the keyed numbers. seen_V: bool [n, V], tokens of prompt and completion so far;
    needed when repetition_penalty is not 1. Statistics are float32, or float64 for float64 logits. Temperature 0 takes the most
    likely token and gives its log-prob at temperature 1 (that of a point mass would say nothing).
    """
    scores_V = logits_V.to(torch.promote_types(logits_V.dtype, torch.float32))
    if sampling.repetition_penalty != 1.0:
        if seen_V is None:
            raise ValueError("a repetition penalty needs the tokens seen so far")
        scores_V = penalised(scores_V, seen_V, sampling.repetition_penalty)
    if sampling.temperature == 0:
        logprob_V = scores_V.log_softmax(-1)
        ids = scores_V.argmax(-1)
        return Draw(ids, logprob_V.gather(-1, ids[:, None])[:, 0], None)
    if sampling.temperature != 1.0:
        scores_V = scores_V / sampling.temperature
    kept_V = None
    if sampling.truncated:
        kept_V = candidates(scores_V, sampling)
        scores_V = scores_V.masked_fill(~kept_V, -math.inf)
    logprob_V = scores_V.log_softmax(-1)
    # float64: in float32 the sum over a large vocabulary would swallow its rare tokens, and a number just below 1 would round to 1
    mass_V = logprob_V.exp().cumsum(-1, dtype=torch.float64)
    ids = torch.searchsorted(mass_V, (uniform * mass_V[:, -1])[:, None], right=True)
    ids = ids.clamp_(max=logits_V.shape[-1] - 1)  # beyond the end only when the logits are NaN; the NaN log-prob then says so
    return Draw(ids[:, 0], logprob_V.gather(-1, ids)[:, 0], kept_V)
