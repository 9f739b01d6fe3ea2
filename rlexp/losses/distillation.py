"""Divergences between a student's and a teacher's next-token distribution, and the importance ratio on them.

p is the student, q the teacher. alpha 1: reverse KL(p, q); alpha 0: forward KL(q, p); between, with m = (1 - alpha) p + alpha q, the generalised
Jensen-Shannon divergence (1 - alpha) KL(p, m) + alpha KL(q, m) (Agarwal et al. 2023, arXiv 2306.13649), which goes to 0 at both ends instead
of to the KLs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

RATIO_LIMIT = 20.0
"""log-ratios are clamped to +- this before the exponential"""
LARGEST_LOG_MASS = -1e-7
"""of a support, so that the logarithm of what is outside it exists"""


class _Divergence(torch.autograd.Function):
    """D_alpha(p, q) of each row, for p = softmax(logits). One buffer of the rows' size is kept for the backward; autograd would keep several."""

    @staticmethod
    def forward(ctx: Any, logits_KV: Tensor, teacher_KV: Tensor, alpha: float) -> Tensor:
        log_p, log_q = torch.log_softmax(logits_KV, -1), torch.log_softmax(teacher_KV, -1)
        slope_KV, value_K = _slope_and_value(log_p, log_q, alpha)
        # d D / d logit_j = p_j s_j - p_j sum_i p_i s_i, where s_j = d D / d p_j
        weighted_KV = slope_KV if alpha == 0 else slope_KV.mul_(log_p.exp())
        ctx.save_for_backward(weighted_KV.sub_(log_p.exp_() * weighted_KV.sum(-1, keepdim=True)))
        return value_K

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope_KV,) = ctx.saved_tensors
        return slope_KV * gradients[0][:, None], None, None


def _slope_and_value(log_p: Tensor, log_q: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """d D / d p up to a constant (for alpha 0 times p, which may be 0), and D."""
    if alpha == 1:
        slope = log_p - log_q
        return slope, (log_p.exp() * slope).sum(-1)
    q = log_q.exp()
    if alpha == 0:
        return -q, (q * (log_q - log_p)).sum(-1)
    log_m = torch.logaddexp(log_p + math.log(1 - alpha), log_q + math.log(alpha))
    slope = (log_p - log_m).mul_(1 - alpha)
    return slope, (log_p.exp() * slope).sum(-1) + alpha * (q * (log_q - log_m)).sum(-1)


def divergence(logits_KV: Tensor, teacher_KV: Tensor, alpha: float) -> Tensor:
    """D_alpha between softmax(logits) and softmax(teacher), [K], with gradient to the student's logits only.

    Logits may be log-probs: normalised over whatever columns there are.
    """
    values: Tensor = _Divergence.apply(logits_KV, teacher_KV, alpha)
    return values


def on_support(logits_KV: Tensor, teacher_KV: Tensor, support_KC: Tensor, add_tail: bool) -> tuple[Tensor, Tensor]:
    """Both sides over the support's tokens: log-probs and one more column for the rest (add_tail), else logits to be renormalised, [K, C (+1)]."""
    student, teacher = logits_KV.gather(-1, support_KC), teacher_KV.gather(-1, support_KC)
    if not add_tail:
        return student, teacher
    return _with_tail(student - logits_KV.logsumexp(-1, keepdim=True)), _with_tail(teacher - teacher_KV.logsumexp(-1, keepdim=True))


def on_given_support(logp_KC: Tensor, teacher_KC: Tensor, add_tail: bool) -> tuple[Tensor, Tensor]:
    """The same from log-probs on a support that is given."""
    return (_with_tail(logp_KC), _with_tail(teacher_KC)) if add_tail else (logp_KC, teacher_KC)


def _with_tail(logp_KC: Tensor) -> Tensor:
    mass = logp_KC.logsumexp(-1, keepdim=True).clamp(max=LARGEST_LOG_MASS)
    return torch.cat([logp_KC, torch.log(-torch.expm1(mass))], -1)


def sampled(logp_K: Tensor, teacher_logp_K: Tensor) -> Tensor:
    """(log p - log q) log p with the first factor held fixed, [K]: at tokens sampled from p its gradient is, in the mean, that of KL(p, q).

    The value itself is no KL.
    """
    return (logp_K - teacher_logp_K).detach() * logp_K


def clipped_ratio(logp_L: Tensor, old_logp_L: Tensor, limit: float) -> Tensor:
    """min(p / p_old, limit), [L], without gradient."""
    return (logp_L.detach() - old_logp_L).clamp(-RATIO_LIMIT, RATIO_LIMIT).exp().clamp(max=limit)
