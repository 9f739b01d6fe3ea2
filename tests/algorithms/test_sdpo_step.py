"""Gradients of whole steps of algorithm=sdpo against the formulas, each rollout and each teacher's sequence forwarded alone with all logits at once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from models_for_tests import tiny_model
from sdpo_batches import groups, sdpo
from step_gradients import companion, gradients
from torch import Tensor

from rlexp.algorithms.sdpo import SDPO, taught
from rlexp.config.sdpo import SDPOConfig
from rlexp.models.network import Network
from rlexp.records.rollout import GenerationBatch

REWARDS = ([0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0])


def log_probs(network: Network, ids: list[int], completion: int) -> Tensor:
    """Of the last `completion` tokens of a sequence, over the whole vocabulary, [completion, V]."""
    return network.causal(input_ids=torch.tensor([ids])).logits[0, -completion - 1 : -1].log_softmax(-1)


def divergence(p: Tensor, q: Tensor, alpha: float) -> Tensor:
    """By distributions given as log-probs, [n, C]."""
    if alpha in (0.0, 1.0):
        first, second = (p, q) if alpha == 1 else (q, p)
        return (first.exp() * (first - second)).sum(-1)
    m = ((1 - alpha) * p.exp() + alpha * q.exp()).log()
    return ((1 - alpha) * p.exp() * (p - m) + alpha * q.exp() * (q - m)).sum(-1)


def per_token(p: Tensor, q: Tensor, ids: Tensor, config: SDPOConfig) -> Tensor:
    """The distillation of each token of one rollout."""
    if config.distillation_mode == "sampled_token":
        at_p, at_q = (side.gather(1, ids[:, None])[:, 0] for side in (p, q))
        return (at_p - at_q).detach() * at_p
    if config.distillation_mode == "full_logits":
        return divergence(p, q, config.distillation_alpha)
    support = (p if config.distillation_support == "student" else q).topk(config.distillation_topk).indices
    p, q = p.gather(1, support), q.gather(1, support)
    if config.distillation_add_tail:
        p, q = (torch.cat([side, (1 - side.exp().sum(1, keepdim=True)).log()], 1) for side in (p, q))
    else:
        p, q = (side - side.logsumexp(1, keepdim=True) for side in (p, q))
    return divergence(p, q, config.distillation_alpha)


def literal(algorithm: SDPO, batch: GenerationBatch, moved: float) -> tuple[float, Tensor]:
    """Loss and gradient: (1 - w) dapo + w mean over rollouts of means over tokens."""
    config = algorithm.config
    network = Network(tiny_model(spread=2.0))
    teacher = companion(network).network
    samples = {sample.rollout: sample for sample in algorithm.samples(batch)}
    old = {}
    with torch.no_grad():
        for number, rollout in enumerate(batch.rollouts):
            ids = [*rollout.turns[0].prompt_ids.tolist(), *rollout.turns[0].ids.tolist()]
            old[number] = log_probs(network, ids, rollout.length).gather(1, torch.tensor(rollout.turns[0].ids)[:, None])[:, 0]
        for index, parameter in enumerate(network.parameters()):
            parameter.add_(moved * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 + index), dtype=parameter.dtype))
    tokens = sum(rollout.length for rollout in batch.rollouts)
    active = sum(number in samples and taught(samples[number]) for number in range(len(batch.rollouts)))
    rollouts = len(batch.rollouts) if config.distillation_normalize == "all" else active
    total: Any = 0.0
    for group, rewards in enumerate(REWARDS):
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) + 1e-4
        for index, reward in enumerate(rewards):
            number = 3 * group + index
            turn = batch.rollouts[number].turns[0]
            ids = torch.tensor(turn.ids)
            p = log_probs(network, [*turn.prompt_ids.tolist(), *turn.ids.tolist()], len(ids))
            ratio = (p.gather(1, ids[:, None])[:, 0] - old[number]).exp()
            advantage = (reward - mean) / spread
            policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            total = total + (1 - config.distillation_weight) * policy.sum() / tokens
            if number in samples and taught(samples[number]):
                with torch.no_grad():
                    q = log_probs(teacher, samples[number].companions["teacher"].ids.tolist(), len(ids))
                x = per_token(p, q, ids, config)
                if config.distillation_is_clip is not None:
                    x = x * ratio.detach().clamp(max=config.distillation_is_clip)
                total = total + config.distillation_weight * x.mean() / rollouts
    parameters = list(network.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    flat = [torch.zeros(p.numel()).double() if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)]
    return float(total.detach()), torch.cat(flat)


def same(moved: float = 0.0, **options: Any) -> None:
    algorithm, batch = sdpo(**options), groups(*REWARDS)
    value, expected = literal(algorithm, batch, moved)
    for tokens in (10_000, 150):  # one row, and several
        (mine,), (metrics,) = gradients(algorithm, batch, tokens=tokens, moved=moved)
        assert metrics["loss"] == pytest.approx(value, abs=1e-9)
        assert (mine - expected).abs().max() < 1e-9
    assert expected.norm() > 1e-4


TOPK: list[dict[str, Any]] = [
    {"distillation_mode": "topk_logits", "distillation_topk": 5, "distillation_support": support, "distillation_add_tail": tail}
    for support, tail in itertools.product(("student", "teacher"), (False, True))
]
FULL: dict[str, Any] = {"distillation_mode": "full_logits"}


@pytest.mark.rows("SDPO-001", "SDPO-002", "SDPO-009", "SDPO-010", "SDPO-011", "SDPO-013", "SDPO-015", "SDPO-016")
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("mode", [FULL, *TOPK], ids=lambda mode: "-".join(map(str, mode.values())))
def test_distillation_of_distributions(mode: dict[str, Any], alpha: float) -> None:
    same(**mode, distillation_alpha=alpha)


@pytest.mark.rows("SDPO-008", "SDPO-014")
@pytest.mark.parametrize("clip", [None, 0.9, 2.0])
@pytest.mark.parametrize("moved", [0.0, 0.02])
def test_sampled_tokens_and_the_importance_ratio(clip: float | None, moved: float) -> None:
    """With moved weights the ratios are on both sides of the bounds; unmoved they are 1."""
    same(moved=moved, distillation_is_clip=clip)


@pytest.mark.rows("SDPO-014")
@pytest.mark.parametrize("mode", [FULL, TOPK[0]], ids=["full", "topk"])
def test_the_importance_ratio_of_distributions(mode: dict[str, Any]) -> None:
    same(moved=0.02, distillation_is_clip=1.05, **mode, distillation_alpha=0.5)


@pytest.mark.rows("SDPO-002", "SDPO-003", "SDPO-045", "SDPO-046")
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("moved", [0.0, 0.02])
def test_both_parts(weight: float, moved: float) -> None:
    same(moved=moved, distillation_weight=weight, distillation_is_clip=None)


def test_active_rollouts_only() -> None:
    same(distillation_weight=0.6, distillation_normalize="active", **FULL)


@pytest.mark.rows("SDPO-003", "SDPO-044", "SDPO-049")
@pytest.mark.parametrize("loss", ["cispo", "vespo", "grpo", "dr_grpo"])
def test_any_policy_loss_is_mixed_in(loss: str) -> None:
    """The gradient is the weighted sum of those of both parts alone."""
    batch, options = groups(*REWARDS), {"loss": loss, "beta": 0.1}
    parts = [gradients(sdpo(distillation_weight=weight, **options), batch, moved=0.02) for weight in (0.0, 1.0, 0.25)]
    policy, distillation, mixed = (found[0][0] for found in parts)
    assert torch.allclose(mixed, 0.75 * policy + 0.25 * distillation, atol=1e-11)
    metrics = [found[1][0] for found in parts]
    assert metrics[2]["self_distillation/policy_loss"] == pytest.approx(metrics[0]["loss"], abs=1e-12)
    assert metrics[2]["self_distillation/distillation_loss"] == metrics[2]["sdpo/distillation_loss"] == pytest.approx(metrics[1]["loss"], abs=1e-12)
    assert metrics[2]["kl"] > 0 and "kl" not in metrics[1], "a KL belongs to the policy part"


@pytest.mark.rows("SDPO-045")
def test_dapo_divides_by_the_tokens_of_the_step_and_bnpo_by_those_of_a_row() -> None:
    batch = groups([0.0, 1.0, 0.5], [1.0, 0.0])
    found = {
        (loss, tokens): gradients(sdpo(distillation_weight=0.0, loss=loss), batch, tokens=tokens)[0][0] for loss in ("dapo", "bnpo") for tokens in (10_000, 16)
    }
    assert torch.allclose(found["dapo", 10_000], found["dapo", 16], atol=1e-11)
    assert not torch.allclose(found["bnpo", 10_000], found["bnpo", 16], atol=1e-6)
    assert not torch.allclose(found["dapo", 16], found["bnpo", 16], atol=1e-6)


def test_a_step_without_a_teacher_is_zero_with_a_live_graph() -> None:
    (gradient,), (metrics,) = gradients(sdpo(distillation_weight=0.5, beta=0.1), groups([0.0, 0.0], [1.0, 1.0]))
    assert metrics["self_distillation/distillation_loss"] == 0.0 and torch.isfinite(gradient).all()
