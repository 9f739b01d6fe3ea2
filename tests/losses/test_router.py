"""The load-balancing loss of routers, and its place in the objective, against a literal loop and numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from loss_batches import batch_of, loss_config, micro_batches, objective

from rlexp.losses.router import load_balancing


def literal(logits: list[list[list[float]]], weights: list[float], top_k: int) -> float:
    """experts x sum over experts of (weighted share of choices) x (weighted mean probability), over the positions of all layers."""
    experts = len(logits[0][0])
    chosen, probability = [0.0] * experts, [0.0] * experts
    for layer in logits:
        for row, weight in zip(layer, weights, strict=True):
            total = sum(math.exp(x) for x in row)
            for expert in sorted(range(experts), key=lambda e: -row[e])[:top_k]:
                chosen[expert] += weight
            for expert in range(experts):
                probability[expert] += weight * math.exp(row[expert]) / total
    count = sum(weights) * len(logits)
    return experts * sum(chosen[e] / count * probability[e] / count for e in range(experts))


@pytest.mark.rows("GRPO-047")
@pytest.mark.parametrize(("layers", "top_k"), [(1, 1), (2, 2), (3, 1)])
def test_value_and_gradient_are_those_of_the_formula(layers: int, top_k: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        leaves = [torch.from_numpy(rng.normal(size=(6, 4))).requires_grad_() for _ in range(layers)]
        weights = torch.tensor([4, 3, 1, 1, 0, 2])
        found = load_balancing(leaves, weights, top_k)
        assert found.item() == pytest.approx(literal([leaf.tolist() for leaf in leaves], weights.tolist(), top_k), abs=1e-12)
        found.backward()
        for number, leaf in enumerate(leaves):
            numbers = [each.tolist() for each in leaves]
            for place in ((0, 1), (2, 3), (5, 0)):
                steps = []
                for shift in (1e-6, -1e-6):  # too small to change which experts are chosen
                    moved = [[list(row) for row in layer] for layer in numbers]
                    moved[number][place[0]][place[1]] += shift
                    steps.append(literal(moved, weights.tolist(), top_k))
                assert leaf.grad[place].item() == pytest.approx((steps[0] - steps[1]) / 2e-6, abs=1e-8)
            assert leaf.grad[4].abs().max() == 0, "a position of weight 0"


@pytest.mark.rows("GRPO-047")
def test_even_and_uneven_loads() -> None:
    even = torch.tensor([[9.0, 0, 0, 0], [0, 9.0, 0, 0], [0, 0, 9.0, 0], [0, 0, 0, 9.0]])
    assert load_balancing([even], torch.ones(4), 1).item() == pytest.approx(1.0), "top_k when the load is even"
    one = torch.tensor([[50.0, 0, 0, 0]] * 4)
    assert load_balancing([one], torch.ones(4), 1).item() == pytest.approx(4.0), "the number of experts when one has all"
    assert load_balancing([one[:1]], torch.ones(1), 1).item() == pytest.approx(4.0), "a single position"
    assert load_balancing([one], torch.zeros(4), 1).item() == 0.0, "no positions"
    assert load_balancing([even.bfloat16()], torch.ones(4, dtype=torch.int64), 1).dtype == torch.float32


@pytest.mark.rows("GRPO-010", "GRPO-047", "GRPO-229", "GRPO-232")
@pytest.mark.parametrize("bonus", [0.0, 0.1])
def test_its_place_in_the_objective(bonus: float) -> None:
    """Coefficient 0.5, a row with a quarter of the positions, loss of the routers 2: the loss grows by 0.25, and policy_loss does not."""
    batch = batch_of(logp=[[-1.0, -0.5], [-2.0]], advantage=[1.0, -1.0])
    batch.entropy = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    run = objective("dapo", entropy_coef=bonus)
    found = []
    for coef in (0.0, 0.5):
        run.router_coef = coef
        assert run.columns == ({"logp", "entropy", "router"} if coef else {"logp", "entropy"}) and run.needs_every_term == bool(coef or bonus)
        (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [[0, 1]])
        inputs.router, inputs.router_share = torch.tensor(2.0, dtype=torch.float64, requires_grad=True), 0.25
        result = run(inputs)
        stats = {name: stat.result() for name, stat in result.stats.items()}
        found.append((result.loss.item(), stats))
        if coef:
            result.loss.backward()
            assert inputs.router.grad.item() == 0.125
            assert result.stats["aux_loss"].value == 0.5 and result.stats["aux_loss"].count == 0.25, "rows are averaged by their positions"
    (plain, without), (more, balanced) = found
    assert more == pytest.approx(plain + 0.25) and balanced["loss"] == pytest.approx(without["loss"] + 0.25)
    assert balanced["aux_loss"] == 2.0 and "aux_loss" not in without
    assert balanced.get("policy_loss") == without.get("policy_loss")
