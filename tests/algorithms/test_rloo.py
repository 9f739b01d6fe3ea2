"""RLOO as a whole: order of its parts, its loss, the KL in the reward, and runs through the command line."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from batches import batch_of as rollouts_of
from batches import random_batch, rollout
from loss_batches import batch_of, step
from loss_batches import random_batch as random_terms
from programs import Programs
from run_configs import composed
from run_folders import metrics
from small_runs import Cli
from step_gradients import gradients

from rlexp.algorithms.rloo import RLOO
from rlexp.batching.terms import flatten
from rlexp.config.algorithms import RLOOConfig, RLOOLossConfig
from rlexp.losses.objective import PolicyObjective
from rlexp.losses.rloo import rloo
from rlexp.records.turn import Turn

NAN = math.nan


def algorithm(**options) -> RLOO:
    loss = {name: options.pop(name) for name in ("epsilon", "epsilon_high", "mask_truncated_completions") if name in options}
    return RLOO(RLOOConfig(**options), RLOOLossConfig(**loss), rloo)


def advantages(algo: RLOO, batch, old=None, reference=None) -> list[float]:
    samples = algo.samples(batch)
    terms = flatten(samples)
    if old is not None:
        terms.columns = {"old": np.array(old, float), "reference": np.array(reference, float)}
    algo.advantages(batch, samples, terms)
    assert terms.advantage_L.tolist() == [batch.rollouts[r].advantage for r in terms.rollout_L]
    return [made.advantage for made in batch.rollouts]


@pytest.mark.rows("RLOO-008", "RLOO-010", "RLOO-011", "RLOO-017", "RLOO-019", "RLOO-020", "RLOO-021", "RLOO-035")
def test_defaults_and_loss():
    config = composed("experiment=none", "algorithm=rloo")
    assert (config.algorithm.num_generations, config.algorithm.num_iterations, config.algorithm.beta, config.algorithm.kl_in) == (2, 1, 0.05, "reward")
    assert config.algorithm.reward_clip_range is None and config.algorithm.normalize_advantages is False
    assert (config.loss.name, config.loss.epsilon, config.loss.epsilon_high, config.loss.mask_truncated_completions) == ("rloo", 0.2, None, False)
    assert composed("experiment=none", "algorithm=rloo", "loss=dapo").loss.name == "dapo", "the command line wins"
    assert composed("experiment=gsm8k", "algorithm=rloo").loss.name == "rloo"
    assert algorithm(beta=0).needs.companions == frozenset() and algorithm(beta=0).needs.before == frozenset()
    assert algorithm().needs.before == {"old", "reference"}


@pytest.mark.rows("RLOO-009", "RLOO-010", "RLOO-011", "RLOO-013", "RLOO-014")
@pytest.mark.cases("S02")
def test_advantages_without_kl():
    groups = [[0.7, NAN], [0.7, 0.1, NAN], [2, 0, 1, 3]]
    batch = rollouts_of([[rollout([5], [20], r, g, i) for i, r in enumerate(rewards)] for g, rewards in enumerate(groups)])
    assert advantages(algorithm(beta=0), batch) == pytest.approx([0, 0, 0.6, -0.6, 0, 2 / 3, -2, -2 / 3, 2], abs=1e-6)
    clipped = advantages(algorithm(beta=0, reward_clip_range=[0.5, 2.0]), batch)
    assert clipped == pytest.approx([0, 0, 0.2, -0.2, 0, 0.8333333, -1.1666667, -0.5, 0.8333333], abs=1e-6), "of 2, 0.5, 1, 2"
    known = [0.6, -0.6, 2 / 3, -2, -2 / 3, 2]
    std = math.sqrt(sum(a * a for a in known) / 5)
    normal = advantages(algorithm(beta=0, normalize_advantages=True), batch)
    assert normal == pytest.approx([0, 0, *(a / (std + 1e-4) for a in known[:2]), 0, *(a / (std + 1e-4) for a in known[2:])], abs=1e-9)


@pytest.mark.rows("RLOO-002", "RLOO-009", "RLOO-010", "RLOO-015", "RLOO-016")
def test_kl_is_a_signed_sum_under_the_sampling_policy_after_the_clip():
    batch = rollouts_of([[rollout([5], [20, 21], 3.0, 0, 0), rollout([5], [22], 0.0, 0, 1)]])
    # sums of old - reference: 0.4 and -0.3; rewards 1 - 0.5 * 0.4 = 0.8 and 0 + 0.5 * 0.3 = 0.15
    values = advantages(algorithm(beta=0.5, reward_clip_range=[0, 1]), batch, old=[-1, -2, -0.5], reference=[-1.5, -1.9, -0.2])
    assert values == pytest.approx([0.65, -0.65])
    total, count = batch.metrics["kl"]
    assert total / count == pytest.approx((0.5 - 0.1 - 0.3) / 3), "the metric is the mean over tokens"


@pytest.mark.rows("RLOO-021")
def test_a_masked_rollout_has_no_kl_and_keeps_its_reward():
    batch = rollouts_of([[rollout([5], [20, 21], 1.0, 0, 0, finish="length"), rollout([5], [22], 0.5, 0, 1)]])
    algo = algorithm(beta=0.5, mask_truncated_completions=True)
    assert [sample.rollout for sample in algo.samples(batch)] == [1]
    assert advantages(algo, batch, old=[-0.5], reference=[-0.7]) == pytest.approx([1.0 - 0.4, 0.4 - 1.0])


TABLE = batch_of(logp=[[-1, -0.5, -2], [-0.7, -1.2, 0]], old=[[-1.1, -0.9, -1.5], [-0.7, -0.6, 0]], active=[[1, 1, 1], [1, 1, 0]], advantage=[1, -0.5])


@pytest.mark.rows("RLOO-004", "RLOO-005", "RLOO-020", "RLOO-076...078")
def test_golden_loss():
    outcome = step(PolicyObjective(rloo, RLOOLossConfig()), TABLE)
    assert outcome.loss == pytest.approx(-0.3, abs=1e-6)
    # log-ratios 0.0 and -0.6: the second rollout is below 0.8 with a negative advantage
    shares = {name: value for name, value in outcome.metrics.items() if name.startswith("clip_ratio/")}
    assert shares == {
        "clip_ratio/region_mean": 0.5,
        "clip_ratio/low_mean": 0.5,
        "clip_ratio/high_mean": 0.0,
        "clip_ratio/low_min": 0.0,
        "clip_ratio/high_max": 0.0,
    }


@pytest.mark.rows("RLOO-076...078")
def test_clipped_rollouts_are_counted_whole():
    """Ratios e^0.4, e^0.4 and e^-0.4 of whole rollouts; only what the advantage pushes on is clipped."""
    table = batch_of(logp=[[-1, -1], [-1], [-1, -1, -1]], old=[[-1.2, -1.2], [-1.4], [-0.9, -0.9, -0.8]], advantage=[1, -1, -1])
    shares = step(PolicyObjective(rloo, RLOOLossConfig()), table).metrics
    found = [shares[f"clip_ratio/{name}"] for name in ("region_mean", "low_mean", "high_mean", "low_min", "high_max")]
    assert found == pytest.approx([2 / 3, 1 / 3, 1 / 3, 0.0, 1.0])


def literal_loss(batch, leaf, low, high):
    total = torch.zeros((), dtype=torch.float64)
    for i, advantage in enumerate(batch.advantage.tolist()):
        mine = [t for t in range(len(leaf)) if int(batch.rollout[t]) == i and bool(batch.active[t])]
        if mine:
            ratio = torch.exp(sum(leaf[t] for t in mine) - sum(batch.old[t] for t in mine))
            clipped = ratio if 1 - low <= ratio.item() <= 1 + high else torch.tensor(min(max(ratio.item(), 1 - low), 1 + high), dtype=torch.float64)
            first, second = ratio * advantage, clipped * advantage
            total = total - (first if first.item() < second.item() else second)
    return total / len(batch.advantage)


@pytest.mark.rows("RLOO-004", "RLOO-005")
@pytest.mark.parametrize("options", [{}, {"epsilon": 0.05, "epsilon_high": 0.6}])
def test_loss_and_gradient_equal_a_literal_loop_however_it_is_split(options):
    config = RLOOLossConfig(**options)
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    for seed in range(20):
        batch = random_terms(seed, spread=0.2)
        leaf = batch.logp.clone().requires_grad_()
        expected = literal_loss(batch, leaf, config.epsilon, high)
        expected.backward()
        for parts in (None, [[3], [5, 0], [4], [2, 1]]):
            outcome = step(PolicyObjective(rloo, config), batch, parts)
            assert outcome.loss == pytest.approx(expected.item(), abs=1e-9)
            assert torch.allclose(outcome.grad, leaf.grad, atol=1e-9, rtol=0)


@pytest.mark.rows("RLOO-006")
def test_on_policy_the_gradient_is_that_of_reinforce():
    batch = random_terms(3, fresh=True)
    outcome = step(PolicyObjective(rloo, RLOOLossConfig()), batch)
    expected = torch.where(batch.active, -batch.advantage[batch.rollout] / len(batch.advantage), 0.0)
    assert torch.allclose(outcome.grad, expected, atol=1e-12)


@pytest.mark.rows("RLOO-007")
def test_the_kl_carries_no_gradient():
    """The gradient with the KL in the reward is that of the same numbers as plain rewards, and it is not that without them."""
    with_kl = random_batch(1)
    (found,), _ = gradients(algorithm(beta=0.5), with_kl)
    plain, without = random_batch(1), random_batch(1)
    for made, target in zip(plain.rollouts, with_kl.rollouts, strict=True):
        made.reward = target.advantage
    centred = RLOO(RLOOConfig(beta=0), RLOOLossConfig(), rloo)
    centred.values = lambda rewards_R, group_R, batch: rewards_R
    (same,), _ = gradients(centred, plain)
    (other,), _ = gradients(algorithm(beta=0), without)
    assert torch.allclose(found, same, atol=1e-12, rtol=0) and (found - other).abs().max() > 1e-4


@pytest.mark.rows("RLOO-005", "RLOO-011")
def test_rows_do_not_change_the_gradient():
    options = {"beta": 0.2, "normalize_advantages": True, "reward_clip_range": [0.1, 0.9]}
    (whole,), _ = gradients(algorithm(**options), random_batch(1), moved=0.02)
    assert whole.abs().max() > 1e-4
    for tokens in (12, 25):
        (split,), _ = gradients(algorithm(**options), random_batch(1), tokens=tokens, moved=0.02)
        assert torch.allclose(split, whole, atol=1e-9, rtol=0)


def test_the_parts_of_a_forked_rollout_share_a_row():
    """Its second turn begins with other tokens than those held so far; the ratio is a product over both parts."""
    forked = rollout([5, 6], [20, 21], 1.0, 0, 0)
    forked.turns.append(Turn(np.array([7, 8]), np.array([22]), np.full(1, -1.0, np.float32), "eos"))
    groups = rollouts_of([[forked, rollout([5, 6], [23], 0.0, 0, 1)]])
    algo = algorithm(beta=0)
    assert [(sample.rollout, sample.keep_together) for sample in algo.samples(groups)] == [(0, 0), (0, 0), (1, None)]
    (whole,), _ = gradients(algo, groups, moved=0.02)
    (split,), _ = gradients(algo, groups, tokens=6, moved=0.02)
    assert torch.allclose(split, whole, atol=1e-9, rtol=0) and whole.abs().max() > 1e-4


@pytest.mark.rows("RLOO-001", "RLOO-012", "RLOO-023", "RLOO-024", "RLOO-035", "RLOO-076")
def test_a_run(programs: Programs, tmp_path):
    cli = Cli(programs, tmp_path)
    done = cli.train("algorithm=rloo", "algorithm.num_generations=2", "algorithm.num_iterations=2", "trainer.max_steps=4")
    assert done.code == 0, done.err[-2000:]
    lines = [line for line in metrics(cli.run) if line["split"] == "train"]
    assert len(lines) == 4 and all({"kl", "entropy", "clip_ratio/region_mean", "loss", "grad_norm"} <= line.keys() for line in lines)
    assert lines[0]["kl"] == 0.0 and lines[0]["kl"] == lines[3]["kl"], "the reference starts as the policy; one number for each batch"


def test_a_wrong_clip_range_is_named(programs: Programs, tmp_path):
    done = Cli(programs, tmp_path).train("algorithm=rloo", "algorithm.reward_clip_range=[1, 0]")
    assert done.code != 0 and "algorithm.reward_clip_range=[1.0, 0.0] must be [lowest, highest]" in done.err
