"""Clip-Cov and KL-Cov: which tokens are chosen, what becomes of them, and that splits change neither."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from batches import random_batch
from loss_batches import Batch, batch_of, loss_config, micro_batches, objective
from run_configs import default_with
from step_gradients import gradients

from rlexp.algorithms.grpo import GRPO
from rlexp.config.algorithm import GRPOConfig
from rlexp.config.validate import problems
from rlexp.losses.covariance import chosen_terms, covariances
from rlexp.registry import LOSSES

LOGP = np.array([-1.0, -2.0, -3.0, -0.5, 9.0])
ADVANTAGE = np.array([2.0, -1.0, -1.0, 0.0, 9.0])
ACTIVE = np.array([True, True, True, True, False])
ONE_STEP = np.zeros(5, np.int64)


def test_the_covariance_of_a_token():
    """Means -1.625 and 0 over the active terms."""
    assert covariances(LOGP, ADVANTAGE, ACTIVE, ONE_STEP).tolist() == pytest.approx([1.25, 0.375, 1.375, 0.0, 0.0])
    two = covariances(LOGP, ADVANTAGE, ACTIVE, np.array([0, 0, 1, 1, 1]))
    assert two.tolist() == pytest.approx([0.75, 0.75, 0.625, 0.625, 0.0]), "each step has its own means"


def choose(name: str, share: float, draws: list[float], **options: float) -> list[bool]:
    config = loss_config(name, cov_share=share, **options)
    cov_L = covariances(LOGP, ADVANTAGE, ACTIVE, ONE_STEP)
    return chosen_terms(config, cov_L, ACTIVE, ONE_STEP, np.array(draws)).tolist()


def test_kl_cov_takes_the_top_share_and_at_least_one():
    assert choose("kl_cov", 0.5, [0.0] * 5) == [True, False, True, False, False]
    assert choose("kl_cov", 1e-4, [0.0] * 5) == [False, False, True, False, False]
    assert choose("kl_cov", 1.0, [0.0] * 5) == [True, True, True, True, False]


def test_clip_cov_draws_among_the_tokens_between_its_bounds():
    assert choose("clip_cov", 1e-4, [0.1, 0.0, 0.2, 0.0, 0.0]) == [True, False, False, False, False]
    assert choose("clip_cov", 1e-4, [0.2, 0.0, 0.1, 0.0, 0.0]) == [False, False, True, False, False]
    assert choose("clip_cov", 1.0, [0.1] * 5) == [True, False, True, False, False], "fewer are eligible than the share"
    assert choose("clip_cov", 1.0, [0.1] * 5, cov_high=1.3) == [True, False, False, False, False]
    assert choose("clip_cov", 1.0, [0.1] * 5, cov_low=2.0) == [False] * 5


@dataclass
class Result:
    loss: float
    grad: torch.Tensor


def outcome(name: str, batch: Batch, chosen: list[float], **options: float) -> Result:
    run = objective(name, **options)
    leaf = batch.logp.clone().requires_grad_()
    (inputs,) = micro_batches(batch, run.config, leaf, [list(range(len(batch.advantage)))])
    inputs.extra["cov_chosen"] = torch.tensor(chosen, dtype=leaf.dtype)
    result = run(inputs)
    result.loss.backward()
    return Result(result.loss.item(), leaf.grad)


@pytest.mark.cases("S14")
def test_what_becomes_of_chosen_tokens():
    """Ratios e^0.5, e^-0.5 and e^0 with A = 2 (the fourth term is masked and not a number); the first two are chosen."""
    batch = batch_of(logp=[[-0.5, -1.5, -1.0, math.nan]], old=[[-1.0, -1.0, -1.0, math.nan]], advantage=[2.0], active=[[1, 1, 1, 0]])
    up, down = math.exp(0.5), math.exp(-0.5)
    clipped = outcome("clip_cov", batch, [1.0, 1.0, 0.0, 0.0])
    assert clipped.loss == pytest.approx(-2 / 3) and clipped.grad.tolist() == pytest.approx([0.0, 0.0, -2 / 3, 0.0])
    held = outcome("kl_cov", batch, [1.0, 1.0, 0.0, 0.0], cov_kl_coef=0.3)
    assert held.loss == pytest.approx((-2 * (up + down + 1) + 0.3 * (0.5 + 0.5)) / 3)
    assert held.grad.tolist() == pytest.approx([(-2 * up + 0.3) / 3, (-2 * down - 0.3) / 3, -2 / 3, 0.0])


def algorithm(name: str, seed: int = 1, **options: float) -> GRPO:
    algo = GRPO(GRPOConfig(), loss_config(name, **options), LOSSES.load(name))
    algo.seed = seed
    return algo


@pytest.mark.parametrize(("name", "options"), [("kl_cov", {"cov_share": 0.3}), ("clip_cov", {"cov_share": 0.2, "cov_low": -9.0, "cov_high": 9.0})])
def test_the_choice_does_not_depend_on_the_split(name, options):
    assert algorithm(name).needs.before == {"old"} and algorithm(name).needs_every_group
    for steps in (1, 2):
        whole, metrics = gradients(algorithm(name, **options), random_batch(1), steps=steps, moved=0.02)
        split, split_metrics = gradients(algorithm(name, **options), random_batch(1), tokens=25, steps=steps, moved=0.02)
        for one, other in zip(whole, split, strict=True):
            assert one.abs().max() > 1e-4 and torch.allclose(one, other, atol=1e-9, rtol=0)
        assert [m["loss"] for m in split_metrics] == pytest.approx([m["loss"] for m in metrics], abs=1e-9)


def test_the_draws_of_clip_cov_are_the_run_s():
    options = {"cov_share": 0.2, "cov_low": -9.0, "cov_high": 9.0}
    first, again, other = (gradients(algorithm("clip_cov", seed, **options), random_batch(1), moved=0.02)[0][0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.allclose(first, other)


def test_bounds_must_be_in_order():
    config = default_with()
    config.loss = loss_config("clip_cov", cov_low=5.0)
    assert problems(config) == ["loss.cov_low=5 must be below loss.cov_high=5: no token is between them"]
