"""Divergences to a teacher against formulas written out number by number, gradients by numerical differences, and the scale of each term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.config.sdpo import SDPOConfig
from rlexp.losses.distillation import clipped_ratio, divergence, on_support
from rlexp.losses.self_distillation import distillation_scale
from rlexp.models.columns import Chunk
from rlexp.models.distillation import Distillation
from rlexp.models.head import columns_of

P, Q = (0.8, 0.2), (0.5, 0.5)


def logs(probabilities: Sequence[float]) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


@pytest.mark.rows("SDPO-011")
@pytest.mark.parametrize(("alpha", "value"), [(0.0, 0.223144), (1.0, 0.192745), (0.3, 0.043926)])
def test_golden_values(alpha: float, value: float) -> None:
    assert float(divergence(logs(P), logs(Q), alpha)) == pytest.approx(value, abs=1e-6)


def kl(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))


def literal_divergence(p: Sequence[float], q: Sequence[float], alpha: float) -> float:
    if alpha == 0:
        return kl(q, p)
    if alpha == 1:
        return kl(p, q)
    m = [(1 - alpha) * x + alpha * y for x, y in zip(p, q, strict=True)]
    return (1 - alpha) * kl(p, m) + alpha * kl(q, m)


def softmax(logits: Sequence[float]) -> list[float]:
    powers = [math.exp(x) for x in logits]
    return [x / sum(powers) for x in powers]


def restricted(probabilities: Sequence[float], support: Sequence[int], tail: bool) -> list[float]:
    kept = [probabilities[i] for i in support]
    return [*kept, 1 - sum(kept)] if tail else [x / sum(kept) for x in kept]


def literal(student: Sequence[float], teacher: Sequence[float], target: int, config: SDPOConfig, held: float | None = None) -> float:
    """One position. held: the value of log p - log q that sampled_token holds fixed; None: as it is."""
    p, q = softmax(student), softmax(teacher)
    if config.distillation_mode == "sampled_token":
        gap = math.log(p[target]) - math.log(q[target]) if held is None else held
        return gap * math.log(p[target])
    if config.distillation_mode == "full_logits":
        return literal_divergence(p, q, config.distillation_alpha)
    source = p if config.distillation_support == "student" else q
    support = sorted(range(len(p)), key=lambda i: -source[i])[: config.distillation_topk]
    both = [restricted(side, support, config.distillation_add_tail) for side in (p, q)]
    return literal_divergence(*both, config.distillation_alpha)


ALPHAS = (0.0, 0.3, 0.5, 1.0)
CONFIGS = [
    SDPOConfig(),
    *(SDPOConfig(distillation_mode="full_logits", distillation_alpha=alpha) for alpha in ALPHAS),
    *(
        SDPOConfig(distillation_mode="topk_logits", distillation_topk=3, distillation_alpha=alpha, distillation_support=support, distillation_add_tail=tail)
        for alpha, support, tail in itertools.product(ALPHAS, ("student", "teacher"), (False, True))
    ),
]


def name_of(config: SDPOConfig) -> str:
    tail = "-tail" if config.distillation_add_tail else ""
    return f"{config.distillation_mode}-{config.distillation_alpha:g}-{config.distillation_support}{tail}"


def logits_of(seed: int, rows: int = 4, width: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    student, teacher = (torch.from_numpy(2 * rng.standard_normal((rows, width))) for _ in range(2))
    return student, teacher, torch.from_numpy(rng.integers(0, width, rows))


def differences(value: Callable[[list[float]], float], at: list[float], step: float = 3e-4) -> list[float]:
    """Numerical derivatives of fourth order."""

    def moved(i: int, by: float) -> float:
        return value([x + by * (i == j) for j, x in enumerate(at)])

    return [(8 * (moved(i, step) - moved(i, -step)) - (moved(i, 2 * step) - moved(i, -2 * step))) / (12 * step) for i in range(len(at))]


@pytest.mark.rows("SDPO-008", "SDPO-009", "SDPO-010", "SDPO-011", "SDPO-013", "SDPO-016")
@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_values_and_gradients_of_each_mode(config: SDPOConfig) -> None:
    student, teacher, target = logits_of(3)
    student.requires_grad_()
    found = Distillation.of(config)(Chunk(student, target, companion_logits={"teacher": teacher}))
    (gradient,) = torch.autograd.grad(found.sum(), student)
    for row in range(len(target)):
        at, other, token = student[row].tolist(), teacher[row].tolist(), int(target[row])
        assert float(found[row].detach()) == pytest.approx(literal(at, other, token, config), abs=1e-12)
        p, q = softmax(at), softmax(other)
        held = math.log(p[token] / q[token])
        slopes = differences(lambda x, other=other, token=token, held=held: literal(x, other, token, config, held), at)  # type: ignore[misc]
        assert gradient[row].tolist() == pytest.approx(slopes, abs=1e-9)


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_equal_networks_differ_by_nothing(config: SDPOConfig) -> None:
    student, _, target = logits_of(4)
    student.requires_grad_()
    found = Distillation.of(config)(Chunk(student, target, companion_logits={"teacher": student.detach().clone()}))
    assert found.abs().max() < 1e-12
    assert torch.autograd.grad(found.sum(), student)[0].abs().max() < 1e-12


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_chunked_equals_unchunked(config: SDPOConfig) -> None:
    draw = torch.Generator().manual_seed(5)
    hidden = torch.randn(11, 6, dtype=torch.float64, generator=draw).requires_grad_()
    other = torch.randn(11, 6, dtype=torch.float64, generator=draw)
    head = torch.nn.Linear(6, 9, bias=False).double()
    target = torch.arange(11) % 9
    column = Distillation.of(config)

    def made(chunk: int) -> list[Tensor]:
        def make(output: Tensor, where: slice) -> Chunk:
            return Chunk(output, target[where], companion_logits={"teacher": head(other[where]).detach()})

        values = columns_of(head, make, {"distillation": column}, chunk, hidden, head)["distillation"]
        return [values, *torch.autograd.grad((values * torch.linspace(-1, 2, 11)).sum(), [hidden, head.weight])]

    plain = column(Chunk(head(hidden), target, companion_logits={"teacher": head(other).detach()}))
    whole = [plain, *torch.autograd.grad((plain * torch.linspace(-1, 2, 11)).sum(), [hidden, head.weight])]
    for chunk in (1, 4, 11, 50):
        for mine, theirs in zip(made(chunk), whole, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-12, rtol=0)


@pytest.mark.rows("SDPO-008")
def test_the_mean_gradient_of_sampled_tokens_is_that_of_the_reverse_kl() -> None:
    student, teacher, _ = logits_of(6, rows=1)
    student.requires_grad_()
    (wanted,) = torch.autograd.grad(divergence(student, teacher, 1.0).sum(), student)
    column, total = Distillation.of(SDPOConfig()), torch.zeros_like(student)
    for token, probability in enumerate(torch.softmax(student[0].detach(), -1).tolist()):
        value = column(Chunk(student, torch.tensor([token]), companion_logits={"teacher": teacher}))
        total += probability * torch.autograd.grad(value.sum(), student)[0]
    assert torch.allclose(total, wanted, atol=1e-12)


@pytest.mark.rows("SDPO-013")
def test_a_support_that_holds_everything_leaves_a_tail_of_its_own() -> None:
    """The mass outside is kept above 1e-7, so that its logarithm exists."""
    student, teacher, _ = logits_of(7, rows=1, width=3)
    student.requires_grad_()
    sides = on_support(student, teacher, torch.tensor([[0, 1, 2]]), True)
    assert float(sides[0][0, -1].detach().exp()) == pytest.approx(1e-7, rel=1e-6)
    value = divergence(*sides, 1.0)
    assert float(value.detach()) == pytest.approx(float(divergence(student, teacher, 1.0).detach()), abs=1e-6)
    assert torch.isfinite(torch.autograd.grad(value.sum(), student)[0]).all()


def test_tokens_that_are_impossible_for_one_side_stay_finite() -> None:
    student = torch.tensor([[200.0, 0.0, -200.0]]).requires_grad_()
    for alpha in (0.3, 1.0):
        value = divergence(student, torch.tensor([[-200.0, 0.0, 200.0]]), alpha)
        assert torch.isfinite(value).all() and torch.isfinite(torch.autograd.grad(value.sum(), student)[0]).all()


@pytest.mark.rows("SDPO-014")
def test_the_ratio_is_bounded_above_only() -> None:
    logp = torch.tensor([-1.0, -1.0, -1.0, -50.0, -1.0], dtype=torch.float64).requires_grad_()
    old = torch.tensor([-1.0, -3.0, -0.5, -1.0, -60.0], dtype=torch.float64)
    found = clipped_ratio(logp, old, 2.0)
    assert not found.requires_grad
    assert found.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5), math.exp(-20), 2.0])


@pytest.mark.rows("SDPO-015")
def test_the_scale_is_a_mean_over_rollouts_of_means_over_tokens() -> None:
    rollout = np.array([0, 0, 0, 1, 1, 3])  # rollout 2 has no terms, 4 and 5 are in the second step
    step = np.array([0, 0, 0, 0, 1, 1])
    mask = np.array([True, True, False, False, False, True])
    everyone = np.ones(6, bool)
    assert distillation_scale(mask, rollout, step, everyone, "all").tolist() == [1 / 8, 1 / 8, 0, 0, 0, 1 / 4]
    assert distillation_scale(mask, rollout, step, everyone, "active").tolist() == [1 / 4, 1 / 4, 0, 0, 0, 1 / 2]
    dropped = np.array([True, True, False, True, True, True])
    assert distillation_scale(mask, rollout, step, dropped, "all").tolist() == [1 / 6, 1 / 6, 0, 0, 0, 1 / 3]
    nothing = np.zeros(6, bool)
    assert distillation_scale(nothing, rollout, step, everyone, "active").tolist() == [0.0] * 6
    assert len(distillation_scale(nothing[:0], rollout[:0], step, everyone, "all")) == 0
