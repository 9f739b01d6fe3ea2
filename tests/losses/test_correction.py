"""Weights for a sampler whose probabilities differ, and the mask on rollouts the policy has left, in hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from loss_batches import batch_of, loss_config, micro_batches, objective, random_batch, step

from rlexp.losses.correction import Correction, correction_weights
from rlexp.losses.off_policy import near_policy


def table(weights=None):
    """Two rollouts of three terms, the last masked; the weights pi_old / pi_sampler of their terms."""
    batch = batch_of(
        logp=[[-1, -0.5, -2], [-0.7, -1.2, 0]],
        old=[[-1.1, -0.9, -1.5], [-0.7, -0.6, 0]],
        active=[[1, 1, 1], [1, 1, 0]],
        advantage=[1, -0.5],
        max_completion_length=4,
    )
    weights = [1.0] * 6 if weights is None else weights
    batch.sampler = batch.old - torch.tensor([math.log(w) for w in weights], dtype=torch.float64)
    return batch


MODES = [
    (Correction("token_truncate", 0.5, 2.0), [0.5, 1.5, 2.0, 0.8, 1.25], (0.5, 6.05 / 5, 2.0)),
    (Correction("token_truncate", None, 2.0), [0.4, 1.5, 2.0, 0.8, 1.25], (0.4, 5.95 / 5, 2.0)),
    (Correction("token_truncate", 0.5, None), [0.5, 1.5, 5.0, 0.8, 1.25], (0.5, 9.05 / 5, 5.0)),
    (Correction("token_mask", 0.5, 2.0), [0.0, 1.5, 0.0, 0.8, 1.25], (0.0, 3.55 / 5, 1.5)),
    (Correction("token_mask", None, None), [0.4, 1.5, 5.0, 0.8, 1.25], (0.4, 8.95 / 5, 5.0)),
    (Correction("sequence_truncate", None, 2.0), [2.0, 2.0, 2.0, 1.0, 1.0], (1.0, 1.5, 2.0)),
    (Correction("sequence_mask", None, 2.0), [0.0, 0.0, 0.0, 1.0, 1.0], (0.0, 0.5, 1.0)),
    (Correction("sequence_mask", 0.5, 2.0, normalize=True), [3.0 ** (1 / 3)] * 3 + [1.0, 1.0], (1.0, (1 + 3.0 ** (1 / 3)) / 2, 3.0 ** (1 / 3))),
]


@pytest.mark.rows("GRPO-052", "GRPO-053", "GRPO-054", "GRPO-055", "GRPO-056", "GRPO-057", "GRPO-058", "GRPO-059", "GRPO-226", "GRPO-227", "GRPO-228")
@pytest.mark.parametrize(("correction", "weights", "metrics"), MODES, ids=str)
def test_weights_and_their_metrics(correction, weights, metrics):
    """Token weights 0.4, 1.5, 5 (product 3) and 0.8, 1.25 (product 1); metrics are of what is left after the bounds."""
    batch = table([0.4, 1.5, 5.0, 0.8, 1.25, 9.0])
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [[0, 1]])
    assert correction_weights(inputs, correction)[:5].tolist() == pytest.approx(weights)
    outcome = step(objective("dapo", correction=correction), batch, [[1], [0]])
    found = [outcome.metrics[f"sampling/importance_sampling_ratio/{part}"] for part in ("min", "mean", "max")]
    assert found == pytest.approx(metrics)


@pytest.mark.rows("GRPO-051")
def test_without_a_correction_nothing_is_weighted_or_asked_for():
    run, batch = objective("dapo"), table([0.4, 1.5, 5.0, 0.8, 1.25, 9.0])
    assert run.before == frozenset() and not any("importance_sampling" in name for name in step(run, batch).metrics)
    assert step(run, batch).loss == step(objective("dapo", correction=Correction("token_mask")), table()).loss
    assert objective("dapo", correction=Correction("token_mask")).before == {"old"}


@pytest.mark.cases("S47")
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("name", ["dapo", "vespo"])
def test_a_missing_number_is_never_weight_one(mode, name):
    batch = table()
    batch.sampler[1] = math.nan
    assert math.isnan(step(objective(name, correction=Correction(mode)), batch).loss)
    batch.active[1] = False
    assert math.isfinite(step(objective(name, correction=Correction(mode)), batch).loss)


@pytest.mark.cases("S14")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["token_mask", "sequence_truncate"])
@pytest.mark.parametrize("name", ["dapo", "vespo"])
def test_nothing_under_the_mask_gets_through(bad, mode, name):
    run = objective(name, correction=Correction(mode), off_policy_mask_threshold=0.1, top_entropy_quantile=0.5, entropy_coef=0.1)
    batches = table([1.2, 0.9, 1.1, 0.7, 1.0, 1.0]), table([1.2, 0.9, 1.1, 0.7, 1.0, 1.0])
    batches[0].entropy, batches[1].entropy = (torch.arange(6, dtype=torch.float64) for _ in range(2))
    for tensor in (batches[1].sampler, batches[1].old, batches[1].entropy):
        tensor[5] = bad
    clean, dirty = (step(run, batch) for batch in batches)
    assert dirty.loss == clean.loss and dirty.metrics == clean.metrics
    weights = [correction_weights(micro_batches(batch, run.config, batch.logp, [[0, 1]])[0], run.correction) for batch in batches]
    assert torch.equal(*weights)
    assert torch.equal(dirty.grad, clean.grad) and torch.equal(dirty.entropy_grad, clean.entropy_grad)


@pytest.mark.parametrize(("mode", "expected"), [("token_mask", [20.0, 19.5, -300.0]), ("sequence_truncate", [20.0, 20.0, -300.0])])
def test_a_far_weight_is_capped_and_one_within_the_limit_is_not(mode, expected):
    batch = batch_of(logp=[[0.0, 0.0], [0.0]], old=[[0.0, 0.0], [0.0]], advantage=[1, 1])
    batch.sampler = torch.tensor([-200.0, -19.5, 300.0], dtype=torch.float64)
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [[0, 1]])
    assert correction_weights(inputs, Correction(mode, None, None) if mode == "token_mask" else Correction(mode, 0.0, None)).tolist() == pytest.approx(
        [math.exp(x) for x in expected], rel=1e-12
    )


@pytest.mark.cases("S14")
@pytest.mark.parametrize("correction", [correction for correction, _, _ in MODES], ids=str)
def test_weights_are_finite_under_the_mask(correction):
    """Also those of rollouts without any active term."""
    batch = random_batch(5)
    batch.sampler = torch.where(batch.active, batch.sampler, math.nan)
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [list(range(6))])
    assert torch.isfinite(correction_weights(inputs, correction)).all()


@pytest.mark.rows("GRPO-063")
def test_vespo_takes_the_weight_inside_phi():
    """log W = sum of log-ratios + sum of log-weights; a weight of 0 counts as 1e-8."""
    batch = batch_of(logp=[[-1.0, -0.5]], old=[[-1.1, -0.5]], advantage=[1.0])
    batch.sampler = batch.old - torch.tensor([math.log(1.2), math.log(1.5)], dtype=torch.float64)
    outcome = step(objective("vespo", correction=Correction("token_mask", None, 3.0)), batch)
    log_w = 0.1 + math.log(1.8)
    assert outcome.metrics["vespo/phi_seq_mean"] == pytest.approx(math.exp(3 + 2 * log_w - 3 * math.exp(log_w)))
    masked = step(objective("vespo", correction=Correction("token_mask", None, 1.3), vespo_k_pos=0.1), batch)
    log_w = 0.1 + math.log(1.2) + math.log(1e-8)
    assert masked.metrics["vespo/phi_seq_mean"] == pytest.approx(math.exp(3 + 0.1 * log_w - 3 * math.exp(log_w)), rel=1e-6)


@pytest.mark.rows("GRPO-064")
def test_rollouts_the_policy_has_left_are_masked_when_negative():
    """Mean of sampler - policy: 0.5 for each rollout; kept at threshold 0.5, masked below, and always where the advantage is not negative."""
    batch = batch_of(logp=[[-1.0, -2.0], [-1.5, -1.5], [-1.0, -2.0]], advantage=[-1.0, 1.0, 0.0])
    batch.sampler = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [[0, 1, 2]])
    assert near_policy(inputs, 0.5).tolist() == [1.0] * 6
    assert near_policy(inputs, 0.49).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    outcome = step(objective("dapo", off_policy_mask_threshold=0.49), batch)
    assert outcome.grad[:2].tolist() == [0.0, 0.0] and outcome.grad[2].item() == pytest.approx(-1 / 6), "the masked terms stay in the denominator"


@pytest.mark.rows("GRPO-064", "GRPO-026")
def test_the_off_policy_mask_falls_back_to_old_and_spares_the_kl():
    batch = batch_of(logp=[[-2.0]], old=[[-1.0]], reference=[[-1.5]], advantage=[-1.0])
    batch.sampler = torch.tensor([math.nan], dtype=torch.float64)
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [[0]])
    assert near_policy(inputs, 0.9).tolist() == [0.0] and near_policy(inputs, 1.1).tolist() == [1.0]
    batch.sampler = batch.old
    outcome = step(objective("dapo", beta=0.5, bias=False, off_policy_mask_threshold=0.9), batch)
    assert outcome.loss == pytest.approx(0.5 * (math.exp(0.5) - 0.5 - 1)), "what is left is the KL"


@pytest.mark.cases("S14", "S47")
def test_dppo_reads_the_sampler_at_active_terms_only():
    batch = batch_of(logp=[[-1.0, -0.5]], old=[[-1.0, -0.5]], advantage=[1.0], active=[[1, 0]])
    batch.sampler = torch.tensor([-1.0, math.nan], dtype=torch.float64)
    assert step(objective("dppo"), batch).grad.tolist() == [-1.0, 0.0]
    batch.active[1] = True
    assert math.isnan(step(objective("dppo"), batch).loss)


def test_a_broken_log_prob_shows_through_the_off_policy_mask():
    batch = batch_of(logp=[[math.nan]], advantage=[-1.0])
    batch.sampler = torch.tensor([-1.0], dtype=torch.float64)
    assert math.isnan(step(objective("dapo", off_policy_mask_threshold=0.5), batch).loss)
