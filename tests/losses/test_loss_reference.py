"""Every loss and option against a slow literal reading of the formulas, in value and in gradient."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from loss_batches import CLIPPED, Batch, loss_config, micro_batches, objective, random_batch, step
from torch import Tensor

from rlexp.losses.kl import kl_term

ZERO = torch.zeros((), dtype=torch.float64)


def tokens_of(batch: Batch, rollout: int) -> list[int]:
    return [i for i in range(len(batch.rollout)) if int(batch.rollout[i]) == rollout and bool(batch.active[i])]


@dataclass
class Literal:
    """What each active token comes to."""

    value: dict[int, Tensor] = field(default_factory=dict)
    kl: dict[int, Tensor] = field(default_factory=dict)
    low: dict[int, bool] = field(default_factory=dict)
    high: dict[int, bool] = field(default_factory=dict)


def literal_terms(config: Any, batch: Batch, leaf: Tensor, beta: float, bias: bool) -> Literal:
    """One token at a time, with plain scalar operations and Python comparisons."""
    low, high = 1 - config.epsilon, 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)
    out = Literal()
    for i, advantage in enumerate(batch.advantage.tolist()):
        tokens = tokens_of(batch, i)
        log_ratio = {t: leaf[t] - (leaf[t].detach() if batch.old is None else batch.old[t]) for t in tokens}
        for t in tokens:
            exponent = log_ratio[t] if config.importance_sampling_level == "token" else sum(log_ratio.values(), ZERO) / len(tokens)
            ratio = torch.exp(exponent)
            clipped = ratio if low <= ratio.item() <= high else ZERO + min(max(ratio.item(), low), high)
            bounded = ratio if config.delta is None or ratio.item() < config.delta else ZERO + config.delta
            first, second = bounded * advantage, clipped * advantage
            out.value[t] = -(first if first.item() < second.item() else second)
            out.low[t] = bounded.item() < low and advantage < 0
            out.high[t] = bounded.item() > high and advantage > 0
            if beta:
                quotient = torch.exp(batch.reference[t] - leaf[t])
                out.kl[t] = (quotient - torch.log(quotient) - 1) * (ratio if bias else 1)
                out.value[t] = out.value[t] + beta * out.kl[t]
    return out


def literal_loss(name: str, value: dict[int, Tensor], batch: Batch, parts: list[list[int]]) -> Tensor:
    """The aggregation of each paper."""
    rollouts = [tokens_of(batch, i) for i in range(len(batch.advantage))]
    if name == "grpo":
        return sum((sum(value[t] for t in tokens) / len(tokens) for tokens in rollouts if tokens), ZERO) / len(rollouts)
    if name == "dapo":
        return sum(value.values(), ZERO) / sum(len(tokens) for tokens in rollouts)
    if name == "dr_grpo":
        return sum(value.values(), ZERO) / (len(rollouts) * batch.max_completion_length)
    micro_batches = [[t for i in part for t in rollouts[i]] for part in parts]
    return sum((sum(value[t] for t in tokens) / len(tokens) for tokens in micro_batches if tokens), ZERO) / len(parts)


def literal_metrics(literal: Literal, batch: Batch, level: str) -> dict[str, float]:
    """Shares of clipped tokens or rollouts, and token means."""
    rollouts = [tokens for tokens in (tokens_of(batch, i) for i in range(len(batch.advantage))) if tokens]
    every = [t for tokens in rollouts for t in tokens]
    low = [sum(literal.low[t] for t in tokens) / len(tokens) for tokens in rollouts]
    high = [sum(literal.high[t] for t in tokens) / len(tokens) for tokens in rollouts]
    by_token = level == "token"
    low_mean = sum(literal.low.values()) / len(every) if by_token else sum(low) / len(low)
    high_mean = sum(literal.high.values()) / len(every) if by_token else sum(high) / len(high)
    metrics = {"low_mean": low_mean, "high_mean": high_mean, "region_mean": low_mean + high_mean, "low_min": min(low), "high_max": max(high)}
    metrics = {f"clip_ratio/{name}": value for name, value in metrics.items()}
    metrics["entropy"] = sum(batch.entropy[t].item() for t in every) / len(every)
    if literal.kl:
        metrics["kl"] = sum(x.item() for x in literal.kl.values()) / len(every)
    return metrics


OPTIONS = [
    {},
    {"epsilon": 0.05},
    {"epsilon": 0.1, "epsilon_high": 0.5},
    {"delta": 1.3},
    {"epsilon_high": 0.28, "delta": 1.1},
]
PARTS = [[[0, 1, 2, 3, 4, 5]], [[3], [5, 0], [4], [2, 1]]]


@pytest.mark.rows(
    "GRPO-003",
    "GRPO-010",
    "GRPO-023",
    "GRPO-025",
    "GRPO-026",
    "GRPO-028",
    "GRPO-029",
    "GRPO-030",
    "GRPO-031",
    "GRPO-036",
    "GRPO-037",
    "GRPO-039",
    "GRPO-048",
    "GRPO-233",
    "GRPO-234",
    "GRPO-235",
    "GRPO-236",
    "GRPO-237",
    "GRPO-238",
    "GRPO-241",
)
@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("beta", "bias"), [(0.0, True), (0.3, True), (0.3, False)])
def test_equals_the_literal_reading(name, level, beta, bias):
    for seed, (options, parts) in enumerate(itertools.product(OPTIONS, PARTS)):
        for fresh in (False, True):
            batch = random_batch(seed, fresh=fresh)
            config = loss_config(name, importance_sampling_level=level, **options)
            leaf = batch.logp.clone().requires_grad_()
            literal = literal_terms(config, batch, leaf, beta, bias)
            expected = literal_loss(name, literal.value, batch, parts)
            (grad,) = torch.autograd.grad(expected, leaf)
            outcome = step(objective(name, beta=beta, bias=bias, importance_sampling_level=level, **options), batch, parts)
            assert outcome.loss == pytest.approx(float(expected.detach()), abs=1e-12)
            torch.testing.assert_close(outcome.grad, grad, atol=1e-12, rtol=1e-10)
            assert outcome.metrics.pop("loss") == outcome.loss
            assert outcome.metrics == pytest.approx(literal_metrics(literal, batch, level), abs=1e-6)


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradients_are_those_of_the_value(name, level):
    batch = random_batch(3)
    run = objective(name, beta=0.2, importance_sampling_level=level, epsilon_high=0.3, delta=1.4)

    def loss(logp: Tensor) -> Tensor:
        return run(micro_batches(batch, run.config, logp, PARTS[0])[0]).loss

    assert torch.autograd.gradcheck(loss, batch.logp.clone().requires_grad_(), eps=1e-7, atol=1e-7)


@pytest.mark.rows("GRPO-025")
def test_bias_corrected_kl_has_the_gradient_of_the_reverse_kl():
    """Summed over all tokens with their probabilities, ratio * k3 differentiates to the exact KL's gradient; k3 alone does not."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(7, generator=generator, dtype=torch.float64), 0)
    logp = torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)

    batch = Batch(logp.detach(), torch.arange(7), torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.bool), reference=reference)
    (inputs,) = micro_batches(batch, loss_config("dapo"), logp, [list(range(7))])
    ratio = torch.exp(logp - logp.detach())
    (corrected,) = torch.autograd.grad((logp.detach().exp() * kl_term(inputs, ratio_L=ratio)).sum(), logits, retain_graph=True)
    (plain,) = torch.autograd.grad((logp.detach().exp() * kl_term(inputs)).sum(), logits)
    torch.testing.assert_close(corrected, exact, atol=1e-12, rtol=1e-10)
    assert (plain - exact).abs().max() > 1e-2
