"""Losses against numbers worked out by hand or by another implementation."""

from __future__ import annotations

import pytest
import torch
from loss_batches import LOSS_NAMES, batch_of, loss_config, micro_batches, objective, step

from rlexp.losses.ratio import importance_ratio

TABLE = batch_of(
    logp=[[-1, -0.5, -2], [-0.7, -1.2, 0]],
    old=[[-1.1, -0.9, -1.5], [-0.7, -0.6, 0]],
    reference=[[-1.2, -0.6, -1.8], [-0.9, -1, 0]],
    active=[[1, 1, 1], [1, 1, 0]],
    advantage=[1, -0.5],
    max_completion_length=4,
)

GOLDEN = [
    ("grpo", {}, -0.260284),
    ("grpo", {"importance_sampling_level": "sequence"}, -0.300000),
    ("bnpo", {}, -0.402340),
    ("dapo", {}, -0.402340),
    ("dapo", {"importance_sampling_level": "sequence"}, -0.440000),
    ("dr_grpo", {}, -0.251463),
    ("dapo", {"epsilon_high": 0.5, "delta": 1.3}, -0.422340),
    ("dapo", {"beta": 0.1}, -0.400913),
    ("dapo", {"beta": 0.1, "bias": False}, -0.400638),
]


@pytest.mark.rows("GRPO-003", "GRPO-023", "GRPO-025", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031", "GRPO-036", "GRPO-037", "GRPO-039", "GRPO-048")
@pytest.mark.parametrize(("name", "options", "loss"), GOLDEN)
def test_golden_losses(name, options, loss):
    assert step(objective(name, **options), TABLE).loss == pytest.approx(loss, abs=1e-6)


@pytest.mark.rows("GRPO-233", "GRPO-234", "GRPO-235", "GRPO-236", "GRPO-237", "GRPO-238", "GRPO-241")
def test_golden_metrics():
    metrics = step(objective("dapo", beta=0.1), TABLE).metrics
    expected = {"kl": 0.014275, "low_mean": 0.2, "high_mean": 0.2, "region_mean": 0.4, "low_min": 0.0, "high_max": 1 / 3}
    for name, value in expected.items():
        assert metrics[name if name == "kl" else f"clip_ratio/{name}"] == pytest.approx(value, abs=1e-6), name


@pytest.mark.rows("GRPO-028", "GRPO-034", "GRPO-048", "GRPO-049", "GRPO-234", "GRPO-235", "GRPO-237")
@pytest.mark.cases("S08")
@pytest.mark.parametrize(("name", "loss"), [("grpo", -0.147581), ("dapo", 0.203225)])
def test_sequence_level_ratio(name, loss):
    batch = batch_of(logp=[[0.1, 0.3], [-0.2, -0.2, 0, 0]], old=[[0, 0], [0, 0, 0, 0]], advantage=[1, -1])
    outcome = step(objective(name, importance_sampling_level="sequence"), batch)
    assert outcome.loss == pytest.approx(loss, abs=1e-6)
    metrics = {key.removeprefix("clip_ratio/"): value for key, value in outcome.metrics.items() if key.startswith("clip_ratio/")}
    assert metrics == {"high_mean": 0.5, "low_mean": 0.0, "region_mean": 0.5, "high_max": 1.0, "low_min": 0.0}


@pytest.mark.rows("GRPO-002", "GRPO-004", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031")
@pytest.mark.cases("S10")
@pytest.mark.parametrize(("name", "loss"), [("grpo", 0.0), ("dapo", 1 / 3), ("bnpo", 1 / 3), ("dr_grpo", 0.125)])
def test_first_loss_of_a_run(name, loss):
    batch = batch_of(logp=[[-0.3, -2], [-1, -0.1, -0.5, -3]], advantage=[1, -1], max_completion_length=8)
    assert step(objective(name), batch).loss == pytest.approx(loss, abs=1e-12)


@pytest.mark.rows("GRPO-002")
@pytest.mark.cases("S09")
@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_ratio_is_one_and_the_gradient_is_not_zero(name, level):
    theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(torch.stack([theta, torch.zeros_like(theta)]), 0)
    batch = batch_of(logp=[logp.tolist()[:1], logp.tolist()[1:]], advantage=[1, -1], max_completion_length=1)
    outcome = step(objective(name, importance_sampling_level=level), batch)
    logp.backward(outcome.grad)
    assert outcome.loss == 0.0
    assert theta.grad.item() == pytest.approx(-0.5, abs=1e-12)
    assert (theta - 0.1 * theta.grad).item() == pytest.approx(0.05, abs=1e-12)
    assert all(value == 0.0 for key, value in outcome.metrics.items() if key.startswith("clip_ratio/"))


@pytest.mark.rows("GRPO-002")
@pytest.mark.cases("S09")
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_first_pass_ratio_is_exactly_one(dtype, level):
    batch = batch_of(logp=[[-0.337, -13.7, -0.01], [-2.2]], advantage=[1, -1], dtype=dtype)
    leaf = batch.logp.clone().requires_grad_()
    (inputs,) = micro_batches(batch, "tokens", leaf, [[0, 1]])
    ratio = importance_ratio(inputs, level)
    assert ratio.dtype == dtype
    assert torch.equal(ratio, torch.ones_like(ratio))
    ratio.sum().backward()
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


@pytest.mark.rows("GRPO-037")
def test_epsilon_high_none_means_epsilon():
    wide = batch_of(logp=[[0.5], [0.5]], old=[[0], [0]], advantage=[1, 1])
    assert step(objective("dapo", epsilon=0.1), wide).loss == pytest.approx(-1.1)
    assert step(objective("dapo", epsilon=0.1, epsilon_high=0.28), wide).loss == pytest.approx(-1.28)
    assert step(objective("dapo", epsilon=0.1, epsilon_high=0.0), wide).loss == pytest.approx(-1.0)


@pytest.mark.rows("GRPO-039")
def test_delta_bounds_negative_advantages_and_what_the_metrics_see():
    batch = batch_of(logp=[[1.0], [1.0]], old=[[0], [0]], advantage=[1, -1])
    unbounded = step(objective("dapo"), batch)
    assert unbounded.loss == pytest.approx((-1.2 + torch.e) / 2)
    bounded = step(objective("dapo", delta=1.5), batch)
    assert bounded.loss == pytest.approx((-1.2 + 1.5) / 2)
    assert bounded.grad.tolist() == [0.0, 0.0]
    below = step(objective("dapo", delta=1.1), batch)
    assert below.loss == pytest.approx((-1.1 + 1.2) / 2)  # -min(1.1, 1.2) and -min(-1.1, -1.2)
    assert bounded.metrics["clip_ratio/high_mean"] == 0.5
    assert below.metrics["clip_ratio/high_mean"] == 0.0


@pytest.mark.rows("GRPO-230")
def test_entropy_is_the_mean_over_active_terms():
    batch = batch_of(logp=[[-1, -1], [-1, -1]], advantage=[1, -1], active=[[1, 1], [1, 0]])
    batch.entropy = torch.tensor([0.1, 0.2, 0.6, float("nan")], dtype=torch.float64)
    assert step(objective("dapo"), batch).metrics["entropy"] == pytest.approx(0.3)


def test_what_the_objective_asks_for():
    assert objective("dapo").columns == {"logp", "entropy"}
    assert objective("dapo").before == frozenset()
    assert objective("dapo", beta=0.01).before == {"reference"}
    assert "kl" not in step(objective("dapo"), TABLE).metrics


def test_registered_configs_state_their_reduction():
    assert {name: loss_config(name).reduction for name in LOSS_NAMES} == {
        "grpo": "rollout_mean",
        "bnpo": "micro_batch",
        "dr_grpo": "rollout_constant",
        "dapo": "tokens",
    }
