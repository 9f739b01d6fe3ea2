"""Nothing under a mask reaches a loss, a gradient or a metric; far log-probs stay finite; a step does not depend on its split."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from loss_batches import CASES, batch_of, loss_config, micro_batches, objective, own_options, random_batch, step

from rlexp.config.algorithm import LossConfig
from rlexp.config.errors import UserError
from rlexp.losses.inputs import PolicyTerm
from rlexp.losses.objective import PolicyObjective
from rlexp.losses.ratio import LOG_RATIO_LIMIT, importance_ratio
from rlexp.records.stats import MAX, MEAN, MIN, Stat

PLACES = ("logp", "old", "reference", "entropy", "advantage", "scale")


@pytest.mark.rows("GRPO-009", "GRPO-012")
@pytest.mark.cases("S14")
@pytest.mark.parametrize(("name", "level"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_nothing_under_the_mask_gets_through(name, level, bias):
    batch = random_batch(5)
    run = objective(name, beta=0.1, bias=bias, **own_options(name, importance_sampling_level=level, delta=1.5))
    whole = [list(range(6))]

    def outcome(place: str, bad: float) -> tuple[float, torch.Tensor, dict]:
        leaf = batch.logp.clone()
        if place == "logp":
            leaf[~batch.active] = bad
        leaf.requires_grad_()
        (inputs,) = micro_batches(batch, run.config, leaf, whole)
        target = {"old": inputs.before, "reference": inputs.before, "entropy": inputs.columns}.get(place)
        if target is not None:
            target[place] = torch.where(inputs.active_L, target[place], bad)
        elif place in ("advantage", "scale"):
            setattr(inputs, f"{place}_L", torch.where(inputs.active_L, getattr(inputs, f"{place}_L"), bad))
        result = run(inputs)
        result.loss.backward()
        return float(result.loss.detach()), leaf.grad, {key: stat.result() for key, stat in result.stats.items()}

    clean = outcome("nowhere", 0.0)
    assert torch.count_nonzero(clean[1]) > 3
    for place, bad in itertools.product(PLACES, (math.nan, math.inf, -math.inf)):
        loss, grad, metrics = outcome(place, bad)
        assert loss == clean[0], (place, bad)
        assert torch.equal(grad, clean[1]), (place, bad)
        assert metrics == clean[2], (place, bad)
        assert torch.equal(grad[~batch.active], torch.zeros_like(grad[~batch.active]))


@pytest.mark.rows("GRPO-009")
@pytest.mark.cases("S14")
@pytest.mark.parametrize(("name", "level"), CASES)
def test_the_term_of_a_loss_is_finite_under_the_mask(name, level):
    """By itself, before the objective masks it again: value, ratio and their gradients."""
    batch = random_batch(5)
    run = objective(name, **own_options(name, importance_sampling_level=level, delta=1.5))
    for place, bad in itertools.product(("logp", "old", "sampler", "advantage"), (math.nan, math.inf, -math.inf)):
        leaf = torch.where(batch.active, batch.logp, bad if place == "logp" else batch.logp).requires_grad_()
        (inputs,) = micro_batches(batch, run.config, leaf, [list(range(6))])
        masked = {"old": inputs.old_logp_L, "sampler": inputs.sampler_logp_L, "advantage": inputs.advantage_L}.get(place, leaf)
        broken = torch.where(inputs.active_L, masked, bad)
        if place == "old":
            inputs.before["old"] = broken
        elif place != "logp":
            setattr(inputs, {"sampler": "sampler_logp_L", "advantage": "advantage_L"}[place], broken)
        term = run.loss(inputs, run.config)
        assert torch.isfinite(term.value_L).all() and torch.isfinite(term.ratio_L).all(), (place, bad)
        (term.value_L.sum() + term.ratio_L.sum()).backward()
        assert torch.isfinite(leaf.grad).all(), (place, bad)


@pytest.mark.cases("S14")
@pytest.mark.parametrize(("reduction", "loss"), [("tokens", 2.0), ("rollout_mean", 2.0), ("rollouts", 4.0), ("rollout_constant", 1.0), ("micro_batch", 2.0)])
def test_masked_nan_in_every_reduction(reduction, loss):
    """Per-token values [1, NaN, 3] with mask [1, 0, 1]: the sum is 4, the mean 2 (L_max is 4)."""
    batch = batch_of(logp=[[1, math.nan, 3]], advantage=[1], active=[[1, 0, 1]])
    leaf = batch.logp.clone().requires_grad_()
    config = type("ItselfConfig", (LossConfig,), {"reduction": reduction})(name="itself")
    (inputs,) = micro_batches(batch, config, leaf, [[0]])
    result = PolicyObjective(lambda inputs, config: PolicyTerm(inputs.logp_L), config)(inputs)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss)
    assert leaf.grad[1] == 0
    assert torch.isfinite(leaf.grad).all()


@pytest.mark.rows("GRPO-012", "GRPO-028", "GRPO-029")
@pytest.mark.cases("S15")
@pytest.mark.parametrize(("name", "loss"), [("dapo", 0.5), ("grpo", 0.25)])
@pytest.mark.parametrize("parts", [[[0, 1, 2, 3]], [[0], [1], [2], [3]], [[0, 1, 2], [3]]])
def test_a_micro_batch_whose_only_rollout_is_masked(name, loss, parts):
    logp = [[-1.0, -0.2], [-0.3, -2.0, -0.7, -0.9], [-1.5, -1.1], [-0.4, -0.6]]
    batch = batch_of(logp=logp, reference=logp, advantage=[1, -1, 1, -1], active=[[1, 1], [1, 1, 1, 1], [0, 0], [1, 1]])
    outcome = step(objective(name, beta=0.1), batch, parts)
    assert outcome.loss == pytest.approx(loss, abs=1e-9)
    assert outcome.metrics["kl"] == 0.0
    assert all(math.isfinite(value) for value in outcome.metrics.values())


@pytest.mark.rows("GRPO-011", "GRPO-012", "GRPO-028", "GRPO-029", "GRPO-030")
@pytest.mark.cases("S15")
@pytest.mark.parametrize(("name", "level"), [case for case in CASES if case[0] != "bnpo"])
def test_a_step_does_not_depend_on_its_split(name, level):
    run = objective(name, beta=0.2, **own_options(name, importance_sampling_level=level, delta=1.5))
    for seed in range(3):
        batch = random_batch(seed)
        whole = step(run, batch)
        for parts in ([[r] for r in range(6)], [[4], [5, 1, 0], [3, 2]], [[0, 1, 2, 3, 4], [5]]):
            split = step(run, batch, parts)
            assert split.loss == pytest.approx(whole.loss, abs=1e-9)
            torch.testing.assert_close(split.grad, whole.grad, atol=1e-9, rtol=0)
            assert split.metrics == pytest.approx(whole.metrics, abs=1e-6)


@pytest.mark.rows("GRPO-031")
def test_bnpo_depends_on_the_split_and_equals_grpo_one_by_one():
    batch = random_batch(1)
    single = [[r] for r in range(6)]
    assert step(objective("bnpo"), batch, single).loss == pytest.approx(step(objective("grpo"), batch).loss, abs=1e-12)
    assert step(objective("bnpo"), batch).loss == pytest.approx(step(objective("dapo"), batch).loss, abs=1e-12)
    assert abs(step(objective("bnpo"), batch, single).loss - step(objective("bnpo"), batch).loss) > 1e-3


@pytest.mark.rows("GRPO-048")
def test_samples_of_one_rollout_share_its_sequence_ratio():
    """A rollout in two pieces within a row is one rollout: the same as in one piece, at any order of its terms."""
    batch = random_batch(2)
    run = objective("grpo", importance_sampling_level="sequence")
    whole = step(run, batch)
    order = torch.randperm(len(batch.logp), generator=torch.Generator().manual_seed(0))
    for name in ("logp", "rollout", "active", "old", "reference", "entropy"):
        setattr(batch, name, getattr(batch, name)[order])
    mixed = step(run, batch)
    assert mixed.loss == pytest.approx(whole.loss, abs=1e-12)
    torch.testing.assert_close(mixed.grad, whole.grad[order], atol=1e-12, rtol=0)


@pytest.mark.rows("GRPO-012")
@pytest.mark.parametrize(("name", "level"), CASES)
@pytest.mark.parametrize("empty", [True, False])
def test_a_step_without_active_terms(name, level, empty):
    """Loss 0, gradient 0, metrics of nothing are NaN and merge as neutral; also for a row without any term."""
    logp: list[list[float]] = [] if empty else [[-1.0], [-2.0]]
    batch = batch_of(logp=logp, reference=logp, advantage=[0.5] * len(logp), active=[[0]] * len(logp))
    batch.active = batch.active.bool()
    outcome = step(objective(name, beta=0.1, **own_options(name, importance_sampling_level=level)), batch)
    assert outcome.loss == 0.0
    assert torch.equal(outcome.grad, torch.zeros_like(batch.logp))
    assert all(math.isnan(value) for key, value in outcome.metrics.items() if key != "loss")


def test_extremes_of_nothing_are_neutral():
    assert Stat(MIN, math.inf).merge(Stat(MIN, 0.25)).result() == 0.25
    assert Stat(MAX, -math.inf).merge(Stat(MAX, 0.25)).result() == 0.25
    assert math.isnan(Stat(MIN, math.inf).result())
    assert math.isnan(Stat(MAX, -math.inf).result())
    assert math.isnan(Stat(MEAN, 0.0, 0.0).result())
    assert Stat(MAX, math.inf).result() == math.inf


@pytest.mark.rows("GRPO-023")
@pytest.mark.cases("S07")
@pytest.mark.parametrize("bias", [True, False])
def test_a_far_reference_does_not_overflow(bias):
    """float32, policy [-101, -1], reference [-1, -0.5]: exp(100) overflows; the second token is exactly as without a cap."""
    batch = batch_of(logp=[[-101, -1]], reference=[[-1, -0.5]], advantage=[0.0], dtype=torch.float32)
    outcome = step(objective("dapo", beta=0.1, bias=bias), batch)
    assert math.isfinite(outcome.loss)
    assert torch.isfinite(outcome.grad).all()
    # loss = beta / N * sum: N is 2. With the bias correction the on-policy gradient is logp - reference.
    assert outcome.grad[1].item() == pytest.approx(0.05 * (-0.5 if bias else -0.648721), abs=1e-7)
    # The policy must be drawn up towards the reference, whichever form the term has.
    assert outcome.grad[0].item() < 0
    batch.active = torch.tensor([False, True])
    masked = step(objective("dapo", beta=0.1, bias=bias), batch)
    assert masked.loss == pytest.approx(0.1 * 0.148721, abs=1e-7)
    assert masked.grad[0] == 0


@pytest.mark.rows("GRPO-023", "GRPO-025")
@pytest.mark.cases("S07")
@pytest.mark.parametrize("bias", [True, False])
def test_beyond_the_limit_value_and_gradient_are_those_at_the_limit(bias):
    """Only the exponential is capped: on-policy the corrected gradient is still logp - reference, the plain one 1 - exp(limit)."""
    batch = batch_of(logp=[[-101.0]], reference=[[-1.0]], advantage=[0.0])
    outcome = step(objective("dapo", beta=1.0, bias=bias), batch)
    assert outcome.loss == pytest.approx(math.exp(LOG_RATIO_LIMIT) - 1 - 100, rel=1e-15)
    assert outcome.grad.item() == pytest.approx(-100 if bias else 1 - math.exp(LOG_RATIO_LIMIT), abs=1e-6)
    near = batch_of(logp=[[-LOG_RATIO_LIMIT]], reference=[[-0.5]], advantage=[0.0])
    assert step(objective("dapo", beta=1.0), near).loss == pytest.approx(math.exp(LOG_RATIO_LIMIT - 0.5) - LOG_RATIO_LIMIT - 0.5, rel=1e-12)
    far_below = batch_of(logp=[[-1.0]], reference=[[-501.0]], advantage=[0.0])
    assert step(objective("dapo", beta=1.0), far_below).loss == 499.0


@pytest.mark.cases("S07")
def test_an_optimizer_step_after_a_far_reference_is_finite():
    parameter = torch.nn.Parameter(torch.tensor([-101.0, -1.0]))
    batch = batch_of(logp=[[-101, -1]], reference=[[-1, -0.5]], advantage=[0.0], dtype=torch.float32)
    run = objective("dapo", beta=0.1)
    (inputs,) = micro_batches(batch, loss_config("dapo"), parameter, [[0]])
    run(inputs).loss.backward()
    assert torch.isfinite(torch.nn.utils.clip_grad_norm_([parameter], 1.0))
    torch.optim.AdamW([parameter]).step()
    assert torch.isfinite(parameter).all()


@pytest.mark.rows("GRPO-003", "GRPO-048")
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_a_far_ratio_is_capped_and_one_within_the_limit_is_not(level):
    batch = batch_of(logp=[[0.0], [0.0], [0.0]], old=[[-200.0], [-LOG_RATIO_LIMIT + 0.5], [300.0]], advantage=[-1, -1, -1])
    leaf = batch.logp.clone().requires_grad_()
    (inputs,) = micro_batches(batch, loss_config("dapo"), leaf, [[0, 1, 2]])
    ratio = importance_ratio(inputs, level)
    assert ratio.tolist() == pytest.approx([math.exp(LOG_RATIO_LIMIT), math.exp(LOG_RATIO_LIMIT - 0.5), math.exp(-300)], rel=1e-12)
    for dtype in (torch.float32, torch.float64):
        far = batch_of(logp=[[0.0], [0.0]], old=[[-200.0], [-1e6]], advantage=[-1, -1], dtype=dtype)
        outcome = step(objective("dapo", importance_sampling_level=level), far)
        assert math.isfinite(outcome.loss)
        assert torch.isfinite(outcome.grad).all()


@pytest.mark.rows("GRPO-048")
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_the_ratio_of_masked_terms_is_finite(level):
    batch = batch_of(logp=[[math.nan, -1.0], [math.inf]], old=[[-1.0, -1.5], [-1.0]], advantage=[1, 1], active=[[0, 1], [0]])
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp, [[0, 1]])
    expected = [1.0, math.exp(0.5), 1.0] if level == "token" else [math.exp(0.5), math.exp(0.5), 1.0]
    assert importance_ratio(inputs, level).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_a_broken_log_prob_at_an_active_term_shows(bad, level):
    """It must not become a silent constant: the loss is not finite, and the run can stop."""
    batch = batch_of(logp=[[bad, -1.0]], old=[[-1.0, -1.0]], advantage=[1.0])
    assert not math.isfinite(step(objective("dapo", importance_sampling_level=level), batch).loss)


def test_a_loss_without_ratio_refuses_the_bias_correction():
    run = PolicyObjective(lambda inputs, config: PolicyTerm(inputs.logp_L), objective("dapo").config, beta=0.1)
    batch = batch_of(logp=[[-1.0]], reference=[[-1.0]], advantage=[1.0])
    with pytest.raises(UserError, match="use_bias_correction_kl=false"):
        step(run, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept(dtype):
    batch = batch_of(logp=[[-1.0, -0.5]], old=[[-1.1, -0.5]], reference=[[-1.0, -2.0]], advantage=[1.0], dtype=dtype)
    (inputs,) = micro_batches(batch, loss_config("dapo"), batch.logp.clone().requires_grad_(), [[0]])
    for level in ("token", "sequence", "sequence_token"):
        assert objective("dapo", beta=0.1, importance_sampling_level=level)(inputs).loss.dtype == dtype
