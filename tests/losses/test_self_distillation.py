"""The loss of algorithm=sdpo on rows of loss terms, against sums written out number by number; masked terms hold NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from loss_batches import objective
from torch import Tensor

from rlexp.config.sdpo import SDPOConfig
from rlexp.losses.inputs import LossInputs
from rlexp.losses.objective import ObjectiveResult
from rlexp.losses.self_distillation import SCALE, SERVER_LOGP, SERVER_SUPPORT, SelfDistillationObjective

NAN = math.nan
LOGP, OLD, ADVANTAGE = (-1.0, -0.5, -2.0, -1.5), (-1.2, -0.4, -3.0, -1.5), (1.0, -2.0, 0.5, 3.0)
ENTROPY, DISTILLATION, SERVER = (0.7, 0.2, 0.4, 0.9), (0.3, -0.6, 0.8, 2.0), (-1.5, -0.25, -1.0, -4.0)
SCALES, POLICY_SCALE = (0.25, 0.0, 0.125, 0.5), 0.1
"""no teacher speaks of the second term; the last is masked, as all are in a filler row"""
TAUGHT, ACTIVE = (0, 2), (0, 1, 2)


def column(numbers: Sequence[float] | Sequence[Sequence[float]], spoken: Sequence[int] = ACTIVE) -> Tensor:
    """Numbers of the terms, NaN at all but the spoken ones."""
    made = torch.tensor(numbers, dtype=torch.float64)
    hidden = torch.ones(len(made), dtype=torch.bool)
    hidden[list(spoken)] = False
    made[hidden] = NAN
    return made.requires_grad_()


def row(**extra: Tensor) -> LossInputs:
    """Four terms of two rollouts."""
    return LossInputs(
        columns={"logp": column(LOGP), "entropy": column(ENTROPY), "distillation": column(DISTILLATION, TAUGHT)},
        before={"old": column(OLD).detach()},
        advantage_L=torch.tensor(ADVANTAGE, dtype=torch.float64),
        sampler_logp_L=column(OLD).detach(),
        active_L=torch.tensor([True, True, True, False]),
        scale_L=torch.full((4,), POLICY_SCALE, dtype=torch.float64),
        rollout_L=torch.tensor([0, 0, 1, 1]),
        tokens_R=torch.tensor([2, 1]),
        extra={SCALE: torch.tensor(SCALES, dtype=torch.float64), **extra},
    )


def run(inputs: LossInputs, router_coef: float = 0.0, **options: Any) -> tuple[ObjectiveResult, dict[str, float], dict[str, list[float]]]:
    """Result, metrics, and the gradient of each column."""
    made = SelfDistillationObjective(SDPOConfig(**options), objective("dapo"))
    made.router_coef = router_coef
    result = made(inputs)
    result.loss.backward()
    slopes = {name: [] if x.grad is None else x.grad.tolist() for name, x in inputs.columns.items()}
    return result, {name: stat.result() for name, stat in result.stats.items()}, slopes


def ratio(term: int) -> float:
    return math.exp(LOGP[term] - OLD[term])


def policy_part(term: int) -> tuple[float, float]:
    """Of a dapo term, and its derivative by the log-prob."""
    plain, held = -ratio(term) * ADVANTAGE[term], -min(max(ratio(term), 0.8), 1.2) * ADVANTAGE[term]
    return max(plain, held) * POLICY_SCALE, (plain if plain >= held else 0.0) * POLICY_SCALE


@pytest.mark.rows("SDPO-002", "SDPO-014", "SDPO-094")
@pytest.mark.parametrize("clip", [None, 1.1, 5.0])
def test_both_parts_and_no_number_of_a_masked_term(clip: float | None) -> None:
    """The first term's ratio is 1.22 and the third's 2.72. The second is no teacher's, and its distillation NaN."""
    factors = [0.0 if term not in TAUGHT else SCALES[term] * (1.0 if clip is None else min(ratio(term), clip)) for term in range(4)]
    distillation = sum(factors[term] * DISTILLATION[term] for term in TAUGHT)
    policy = sum(policy_part(term)[0] for term in ACTIVE)
    result, found, slopes = run(row(), distillation_weight=0.3, distillation_is_clip=clip)
    assert result.loss.item() == pytest.approx(0.7 * policy + 0.3 * distillation, abs=1e-12)
    assert found["loss"] == result.loss.item() and found["self_distillation/policy_loss"] == pytest.approx(policy, abs=1e-12)
    assert found["self_distillation/distillation_loss"] == found["sdpo/distillation_loss"] == pytest.approx(distillation, abs=1e-12)
    assert slopes["distillation"] == pytest.approx([0.3 * factor for factor in factors], abs=1e-12)
    assert slopes["logp"] == pytest.approx([0.7 * policy_part(term)[1] if term in ACTIVE else 0.0 for term in range(4)], abs=1e-12)


@pytest.mark.rows("SDPO-004", "SDPO-099")
def test_distillation_alone_leaves_the_policy_part_out() -> None:
    inputs = row()
    result, found, slopes = run(inputs, distillation_is_clip=None)
    assert set(found) == {"loss", "entropy", "self_distillation/distillation_loss", "sdpo/distillation_loss"}
    assert found["loss"] == result.loss.item() == pytest.approx(0.25 * 0.3 + 0.125 * 0.8)
    assert found["entropy"] == pytest.approx((0.7 + 0.2 + 0.4) / 3) and result.stats["entropy"].count == 3
    assert slopes["logp"] == [] and slopes["distillation"] == [0.25, 0, 0.125, 0]


@pytest.mark.rows("SDPO-004")
def test_a_policy_alone_has_no_teacher() -> None:
    inputs = row()
    del inputs.columns["distillation"], inputs.extra[SCALE]
    result, found, _ = run(inputs, distillation_weight=0.0)
    assert found["loss"] == found["self_distillation/policy_loss"] == pytest.approx(sum(policy_part(term)[0] for term in ACTIVE))
    assert not any("distillation_loss" in name for name in found) and result.loss.requires_grad


@pytest.mark.rows("SDPO-015")
def test_a_row_without_a_teacher_is_zero_with_a_live_graph() -> None:
    inputs = row()
    inputs.extra[SCALE] = torch.zeros(4, dtype=torch.float64)
    result, found, slopes = run(inputs)
    assert result.loss.item() == found["loss"] == 0.0 and slopes["distillation"] == [0, 0, 0, 0]


@pytest.mark.rows("SDPO-015")
@pytest.mark.parametrize("add_tail", [False, True])
def test_a_filler_row_adds_exactly_nothing(add_tail: bool) -> None:
    """Its terms have a teacher's scale, but all are masked; equal sides of a mixture would differ by rounding."""
    for support in (False, True):
        inputs = row(**({SERVER_LOGP: column(SERVER, ()).detach(), SERVER_SUPPORT: column([LOGP] * 4, ()).detach()} if support else {}))
        inputs.columns["support_logp"], inputs.active_L = column([LOGP] * 4, ()), torch.zeros(4, dtype=torch.bool)
        result, found, slopes = run(inputs, distillation_alpha=0.3, distillation_add_tail=add_tail)
        assert result.loss.item() == found["loss"] == found["sdpo/distillation_loss"] == 0.0
        assert not torch.tensor(slopes["support_logp" if support else "distillation"]).any()


@pytest.mark.rows("GRPO-047")
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_the_load_of_experts_keeps_its_own_weight(weight: float) -> None:
    """Coefficient 0.5, a quarter of the positions, loss of the routers 2: 0.25 more, whatever the weight."""
    plain, _, _ = run(row(), distillation_weight=weight)
    inputs = row()
    inputs.router, inputs.router_share = torch.tensor(2.0, dtype=torch.float64, requires_grad=True), 0.25
    more, found, _ = run(inputs, router_coef=0.5, distillation_weight=weight)
    assert more.loss.item() == found["loss"] == pytest.approx(plain.loss.item() + 0.25, abs=1e-12)
    assert inputs.router.grad is not None and inputs.router.grad.item() == 0.125
    assert found["aux_loss"] == 2.0 and "aux_loss" not in plain.stats


@pytest.mark.rows("SDPO-008", "SDPO-089", "SDPO-098")
def test_a_server_speaks_of_sampled_tokens() -> None:
    result, found, slopes = run(row(**{SERVER_LOGP: column(SERVER, TAUGHT).detach()}), distillation_is_clip=None)
    gaps = {term: LOGP[term] - SERVER[term] for term in TAUGHT}
    assert result.loss.item() == pytest.approx(sum(SCALES[term] * gaps[term] * LOGP[term] for term in TAUGHT), abs=1e-12)
    assert slopes["logp"] == pytest.approx([SCALES[term] * gaps[term] if term in TAUGHT else 0.0 for term in range(4)], abs=1e-12)
    assert slopes["distillation"] == [], "there is no such column"
    name = "self_distillation/server_logprob_abs_diff"
    assert found[name] == pytest.approx((0.5 + 1.0) / 2) and result.stats[name].count == 2


@pytest.mark.rows("SDPO-010", "SDPO-013", "SDPO-091")
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_a_server_speaks_of_a_support(tail: bool, alpha: float) -> None:
    mine, theirs = [(0.5, 0.2), (0.3, 0.3), (0.1, 0.6), (0.2, 0.2)], [(0.4, 0.4), (0.3, 0.3), (0.3, 0.2), (0.6, 0.2)]
    inputs = row(**{SERVER_LOGP: column(SERVER, TAUGHT).detach()})
    inputs.columns["support_logp"] = column([[math.log(x) for x in pair] for pair in mine], TAUGHT)
    inputs.extra[SERVER_SUPPORT] = column([[math.log(x) for x in pair] for pair in theirs], TAUGHT).detach()
    options = {"distillation_alpha": alpha, "distillation_add_tail": tail, "distillation_is_clip": None}
    result, _, slopes = run(inputs, distillation_mode="topk_logits", distillation_topk=2, **options)

    def kl(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))

    def literal(log_p: Sequence[float], term: int) -> float:
        both = [(math.exp(log_p[0]), math.exp(log_p[1])), theirs[term]]
        p, q = ([*side, 1 - sum(side)] if tail else [x / sum(side) for x in side] for side in both)
        m = [(1 - alpha) * x + alpha * y for x, y in zip(p, q, strict=True)]
        return kl(p, q) if alpha == 1 else (1 - alpha) * kl(p, m) + alpha * kl(q, m)

    at = [[math.log(x) for x in pair] for pair in mine]
    assert result.loss.item() == pytest.approx(sum(SCALES[term] * literal(at[term], term) for term in TAUGHT), abs=1e-12)
    for term in range(4):
        for place in (0, 1):
            moved = [[x + shift * (i == place) for i, x in enumerate(at[term])] for shift in (1e-5, -1e-5)]
            slope = SCALES[term] * (literal(moved[0], term) - literal(moved[1], term)) / 2e-5 if term in TAUGHT else 0.0
            assert slopes["support_logp"][term][place] == pytest.approx(slope, abs=1e-9)
