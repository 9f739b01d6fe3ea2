"""Estimators of the KL against hand numbers and exact sums, and its adaptive coefficient."""

from __future__ import annotations

import math

import pytest
import torch
from loss_batches import loss_config, random_batch, step

from rlexp.losses.dapo import dapo
from rlexp.losses.kl import KLController, estimate
from rlexp.losses.objective import PolicyObjective

ESTIMATORS = ("k1", "k2", "k3", "abs")


def literal(d: float, estimator: str) -> tuple[float, float]:
    """Value, and slope with respect to the policy's log-prob, for d = reference - policy."""
    return {"k1": (-d, 1.0), "k2": (d * d / 2, -d), "k3": (math.exp(d) - d - 1, 1 - math.exp(d)), "abs": (abs(d), -math.copysign(1.0, d))}[estimator]


@pytest.mark.rows("GRPO-023", "RLOO-015")
@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.4), ("k2", 0.08), ("k3", 0.070320), ("abs", 0.4)])
def test_hand_numbers(estimator, expected):
    assert estimate(torch.tensor(-1.4 + 1.0, dtype=torch.float64), estimator).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.rows("GRPO-023", "GRPO-024", "GRPO-026")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_value_and_gradient_in_the_objective(estimator):
    config = loss_config("dapo")
    for seed in range(20):
        batch = random_batch(seed)
        plain = step(PolicyObjective(dapo, config), batch)
        with_kl = step(PolicyObjective(dapo, config, beta=0.3, kl_estimator=estimator, use_bias_correction_kl=False), batch)
        active = [t for t in range(len(batch.logp)) if bool(batch.active[t])]
        found = {t: literal(float(batch.reference[t] - batch.logp[t]), estimator) for t in active}
        assert with_kl.metrics["kl"] == pytest.approx(sum(value for value, _ in found.values()) / len(active), abs=1e-9)
        assert with_kl.loss - plain.loss == pytest.approx(0.3 * sum(value for value, _ in found.values()) / len(active), abs=1e-9)
        slopes = torch.tensor([0.3 * found[t][1] / len(active) if t in found else 0.0 for t in range(len(batch.logp))], dtype=torch.float64)
        assert torch.allclose(with_kl.grad - plain.grad, slopes, atol=1e-9, rtol=0)


@pytest.mark.rows("GRPO-025")
@pytest.mark.parametrize(("estimator", "with_ratio"), [("k1", True), ("k3", True), ("k2", False)])
def test_in_the_mean_the_gradient_is_that_of_the_reverse_kl(estimator, with_ratio):
    """Summed over a whole vocabulary with its probabilities."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(7, generator=generator, dtype=torch.float64), -1)
    logp = torch.log_softmax(logits, -1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)
    ratio = torch.exp(logp - logp.detach()) if with_ratio else 1.0
    (found,) = torch.autograd.grad((logp.detach().exp() * estimate(reference - logp, estimator) * ratio).sum(), logits)
    assert torch.allclose(found, exact, atol=1e-12)


def test_k1_and_k3_are_unbiased():
    generator = torch.Generator().manual_seed(2)
    logp, reference = (torch.log_softmax(torch.randn(9, generator=generator, dtype=torch.float64), -1) for _ in range(2))
    exact = (logp.exp() * (logp - reference)).sum()
    for estimator in ("k1", "k3"):
        assert torch.allclose((logp.exp() * estimate(reference - logp, estimator)).sum(), exact, atol=1e-12)


def test_the_adaptive_coefficient():
    """Ziegler et al.: the relative error is cut at 0.2."""
    control = KLController(0.1, 0.02, 0.1)
    for kl, expected in ((0.021, 0.1 * 1.005), (0.5, 0.1 * 1.005 * 1.02), (0.0, 0.1 * 1.005 * 1.02 * 0.98), (math.nan, 0.1 * 1.005 * 1.02 * 0.98)):
        control.update(kl)
        assert control.beta == pytest.approx(expected, abs=1e-15)
    other = KLController(0.1, 0.02, 0.1)
    other.load_state_dict(control.state_dict())
    assert other.beta == control.beta
    fixed = KLController(0.1, None, 0.1)
    fixed.update(9.0)
    fixed.load_state_dict(control.state_dict())
    assert fixed.beta == 0.1
