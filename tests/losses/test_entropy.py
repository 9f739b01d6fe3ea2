"""The entropy bonus, its controller, and the mask of high-entropy tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from loss_batches import LOSS_NAMES, batch_of, loss_config, objective, random_batch, step

from rlexp.losses.entropy import EntropyController, high_entropy, mean_scale

TEN = np.arange(1, 11) / 10


@pytest.mark.rows("GRPO-076")
@pytest.mark.parametrize(("below", "kept"), [(0.8, [0.9, 1.0]), (0.5, [0.6, 0.7, 0.8, 0.9, 1.0]), (0.0, list(TEN)), (1.0, [1.0])])
def test_the_top_share_of_ten_entropies(below, kept):
    """A NaN, an infinity and a large number under the mask change nothing."""
    values = np.concatenate([TEN[::-1], [math.nan, math.inf, 50.0]])
    active = np.arange(13) < 10
    keep = high_entropy(values, active, np.zeros(13, np.int64), 1 - below)
    assert sorted(values[keep]) == pytest.approx(kept) and not keep[10:].any()


@pytest.mark.rows("GRPO-076")
def test_no_active_term_keeps_none_and_each_step_has_its_own_threshold():
    assert not high_entropy(TEN, np.zeros(10, bool), np.zeros(10, np.int64), 0.2).any()
    assert high_entropy(np.zeros(0), np.zeros(0, bool), np.zeros(0, np.int64), 0.2).shape == (0,)
    step_L = np.array([0] * 5 + [1] * 5)
    assert TEN[high_entropy(TEN, np.ones(10, bool), step_L, 0.4)].tolist() == [0.4, 0.5, 0.9, 1.0]
    assert mean_scale(np.array([True, True, False, False]), np.array([0, 0, 0, 1])).tolist() == [0.5, 0.5, 0.5, 1.0]


def test_equal_entropies_stay_together_whatever_their_last_bits():
    """The threshold falls between two of three entropies that are one on paper."""
    values = np.array([0.1, 0.5, 0.5 + 1e-7, 0.5 - 1e-7, 0.9])
    for order in ([0, 1, 2, 3, 4], [0, 3, 1, 2, 4]):
        assert high_entropy(values[order], np.ones(5, bool), np.zeros(5, np.int64), 0.4).sum() == 4


def test_an_entropy_that_is_not_a_number_is_kept_so_that_the_loss_shows_it():
    assert high_entropy(np.array([0.5, math.nan]), np.ones(2, bool), np.zeros(2, np.int64), 0.5).all()


@pytest.mark.rows("GRPO-067", "GRPO-068", "GRPO-229", "GRPO-231")
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_the_bonus_is_a_plain_token_mean_whatever_the_loss(name):
    batch = batch_of(logp=[[-1, -2], [-1, -1, -0.5]], advantage=[1, -1], active=[[1, 1], [1, 1, 0]])
    batch.entropy = torch.tensor([0.1, 0.2, 0.6, 1.1, math.nan], dtype=torch.float64)
    plain, bonus = step(objective(name), batch), step(objective(name, entropy_coef=0.05), batch)
    assert bonus.loss == pytest.approx(plain.loss - 0.05 * 0.5) and bonus.metrics["policy_loss"] == pytest.approx(plain.loss)
    assert bonus.metrics["entropy_coef"] == 0.05 and bonus.metrics["entropy_kept"] == pytest.approx(0.5)
    assert bonus.entropy_grad.tolist() == pytest.approx([-0.0125] * 4 + [0.0]) and torch.equal(bonus.grad, plain.grad)
    assert not {"policy_loss", "entropy_coef", "entropy_kept"} & plain.metrics.keys()


@pytest.mark.rows("GRPO-067", "GRPO-074", "GRPO-076")
def test_mask_and_bonus_do_not_depend_on_the_split():
    """Policy term and bonus are over the high-entropy terms, the KL over all; `entropy` stays the mean over all."""
    run = objective("dapo", beta=0.1, top_entropy_quantile=0.4, entropy_coef=0.3)
    batch = random_batch(4)
    whole = step(run, batch)
    for parts in ([[r] for r in range(6)], [[4], [5, 1, 0], [3, 2]]):
        split = step(run, batch, parts)
        assert split.loss == pytest.approx(whole.loss, abs=1e-12) and split.metrics == pytest.approx(whole.metrics, abs=1e-6)
        torch.testing.assert_close(split.entropy_grad, whole.entropy_grad, atol=1e-12, rtol=0)
        torch.testing.assert_close(split.grad, whole.grad, atol=1e-12, rtol=0)
    kept = high_entropy(batch.scored_entropy.numpy(), batch.active.numpy(), np.zeros(len(batch.logp), np.int64), 0.4)
    assert 0 < kept.sum() < batch.active.sum()
    assert torch.equal(whole.entropy_grad != 0, torch.from_numpy(kept))
    assert whole.metrics["entropy_kept"] == pytest.approx(batch.entropy[kept].mean().item())
    assert whole.metrics["entropy"] == pytest.approx(batch.entropy[batch.active].mean().item())


def controller(**options):
    return EntropyController(loss_config("dapo", use_adaptive_entropy=True, **options))


@pytest.mark.rows("GRPO-069", "GRPO-070", "GRPO-071", "GRPO-072", "GRPO-073", "GRPO-074", "GRPO-075", "GRPO-251")
def test_the_coefficient_follows_the_entropy():
    """coef 0.01, target 5, delta 0.005: off in the first step and after a step above the target; at the target counts as below."""
    control = controller(entropy_coef=0.01, entropy_target=5.0)
    seen = []
    for entropy in (6.0, 4.0, 5.0, 5.1, 9.0, 9.0):
        seen.append((control.coef, control.applied))
        control.update(entropy)
    assert [coef for coef, _ in seen] == pytest.approx([0.01, 0.005, 0.01, 0.015, 0.01, 0.005])
    assert [applied for _, applied in seen] == pytest.approx([0.0, 0.0, 0.01, 0.015, 0.0, 0.0])
    control.update(9.0)
    assert control.coef == 0.0, "not below entropy_coef_min"
    again = controller(entropy_coef=0.01, entropy_target=5.0)
    control.update(1.0)
    again.load_state_dict(control.state_dict())
    assert (again.coef, again.applied) == (control.coef, control.applied) == (0.005, 0.005)


@pytest.mark.rows("GRPO-072", "GRPO-070")
def test_the_coefficient_is_bounded_and_an_empty_step_changes_nothing():
    control = controller(entropy_coef=0.02, entropy_target=5.0, entropy_coef_max=0.021)
    control.update(math.nan)
    assert (control.coef, control.last) == (0.02, math.inf)
    control.update(1.0)
    assert control.coef == 0.021 and control.applied == 0.021
    fixed = EntropyController(loss_config("dapo", entropy_coef=0.3))
    fixed.update(0.0)
    assert fixed.coef == fixed.applied == 0.3 and fixed.active and not EntropyController(loss_config("dapo")).active


@pytest.mark.rows("GRPO-070", "GRPO-231")
def test_an_adaptive_bonus_is_absent_while_it_is_off():
    batch = random_batch(1)
    run = objective("dapo", entropy_coef=0.5, use_adaptive_entropy=True, entropy_target=2.0)
    first = step(run, batch)
    assert first.loss == step(objective("dapo"), batch).loss and first.metrics["entropy_coef"] == 0.5
    run.entropy.update(first.metrics["entropy_kept"])
    assert step(run, batch).loss == pytest.approx(first.loss - 0.505 * first.metrics["entropy_kept"])
