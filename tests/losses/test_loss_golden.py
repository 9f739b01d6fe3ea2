"""Losses against numbers worked out by hand or by another implementation."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from loss_batches import CASES, LOSS_NAMES, batch_of, loss_config, micro_batches, objective, own_options, step

from rlexp.losses.correction import Correction
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
    ("gspo", {"epsilon": 0.2, "epsilon_high": None}, -0.300000),
    ("bnpo", {}, -0.402340),
    ("dapo", {}, -0.402340),
    ("dapo", {"importance_sampling_level": "sequence"}, -0.440000),
    ("dr_grpo", {}, -0.251463),
    ("luspo", {}, -1.100000),
    ("luspo", {"importance_sampling_level": "token"}, -1.005851),  # refused by validation; the formula alone
    ("sapo", {}, -0.612301),
    ("vespo", {}, 0.622568),
    ("cispo", {"epsilon_high": 0.2}, 0.102000),
    ("cispo", {}, 0.476972),  # epsilon_high is 5
    ("dapo", {"epsilon_high": 0.5, "delta": 1.3}, -0.422340),
    ("dapo", {"beta": 0.1}, -0.400913),
    ("dapo", {"beta": 0.1, "bias": False}, -0.400638),
    ("dapo", {"correction": Correction("token_mask", None, 3.5)}, -0.101241),  # weights [[1.2, 0.9, 0], [3, 1, 1]], see WEIGHTS
    ("rloo", {}, -0.300000),
]
WEIGHTS = [1.2, 0.9, 4.0, 3.0, 1.0, 1.0]
"""pi_old / pi_sampler of each term; the third is out of bounds and becomes 0"""


@pytest.mark.rows("GRPO-003", "GRPO-023", "GRPO-025", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031", "GRPO-032", "GRPO-033", "GRPO-034", "GRPO-035")
@pytest.mark.rows("GRPO-036", "GRPO-037", "GRPO-038", "GRPO-039", "GRPO-040", "GRPO-041", "GRPO-042", "GRPO-043", "GRPO-044", "GRPO-045", "GRPO-048")
@pytest.mark.rows("GRPO-051", "GRPO-054", "RLOO-004")
@pytest.mark.parametrize(("name", "options", "loss"), GOLDEN)
def test_golden_losses(name, options, loss):
    batch = dataclasses.replace(TABLE, sampler=TABLE.old - torch.tensor([math.log(w) for w in WEIGHTS], dtype=torch.float64))
    assert step(objective(name, **options), batch).loss == pytest.approx(loss, abs=1e-6)


@pytest.mark.rows("GRPO-233", "GRPO-234", "GRPO-235", "GRPO-236", "GRPO-237", "GRPO-238", "GRPO-241")
def test_golden_metrics():
    metrics = step(objective("dapo", beta=0.1), TABLE).metrics
    expected = {"kl": 0.014275, "low_mean": 0.2, "high_mean": 0.2, "region_mean": 0.4, "low_min": 0.0, "high_max": 1 / 3}
    for name, value in expected.items():
        assert metrics[name if name == "kl" else f"clip_ratio/{name}"] == pytest.approx(value, abs=1e-6), name


@pytest.mark.rows("GRPO-028", "GRPO-034", "GRPO-048", "GRPO-049", "GRPO-234", "GRPO-235", "GRPO-237")
@pytest.mark.cases("S08")
@pytest.mark.parametrize(("name", "loss"), [("grpo", -0.147581), ("dapo", 0.203225), ("luspo", 0.609675)])
def test_sequence_level_ratio(name, loss):
    batch = batch_of(logp=[[0.1, 0.3], [-0.2, -0.2, 0, 0]], old=[[0, 0], [0, 0, 0, 0]], advantage=[1, -1])
    outcome = step(objective(name, importance_sampling_level="sequence"), batch)
    assert outcome.loss == pytest.approx(loss, abs=1e-6)
    metrics = {key.removeprefix("clip_ratio/"): value for key, value in outcome.metrics.items() if key.startswith("clip_ratio/")}
    assert metrics == {"high_mean": 0.5, "low_mean": 0.0, "region_mean": 0.5, "high_max": 1.0, "low_min": 0.0}


@pytest.mark.rows("GRPO-002", "GRPO-004", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031", "GRPO-033", "GRPO-034")
@pytest.mark.cases("S10")
@pytest.mark.parametrize(
    ("name", "loss"), [("grpo", 0.0), ("dapo", 1 / 3), ("bnpo", 1 / 3), ("dr_grpo", 0.125), ("sapo", (2 / 1.05 - 2 / 1.0) / 2), ("luspo", 1.0)]
)
def test_first_loss_of_a_run(name, loss):
    batch = batch_of(logp=[[-0.3, -2], [-1, -0.1, -0.5, -3]], advantage=[1, -1], max_completion_length=8)
    assert step(objective(name), batch).loss == pytest.approx(loss, abs=1e-12)


FIRST_LOSS = {"cispo": 0.0, "vespo": 0.0, "sapo": (2 / 1.05 - 2) / 2}
"""log-probs of equal tokens cancel in cispo and vespo; sapo's gate is worth 2 / temperature at ratio 1"""


@pytest.mark.rows("GRPO-002")
@pytest.mark.cases("S09")
@pytest.mark.parametrize(("name", "level"), CASES)
def test_ratio_is_one_and_the_gradient_is_not_zero(name, level):
    theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(torch.stack([theta, torch.zeros_like(theta)]), 0)
    batch = batch_of(logp=[logp.tolist()[:1], logp.tolist()[1:]], advantage=[1, -1], max_completion_length=1)
    outcome = step(objective(name, **own_options(name, importance_sampling_level=level)), batch)
    logp.backward(outcome.grad)
    assert outcome.loss == pytest.approx(FIRST_LOSS.get(name, 0.0), abs=1e-12 if name == "sapo" else 0.0)
    assert theta.grad.item() == pytest.approx(-0.5, abs=1e-12)
    assert (theta - 0.1 * theta.grad).item() == pytest.approx(0.05, abs=1e-12)
    assert all(value == 0.0 for key, value in outcome.metrics.items() if key.startswith("clip_ratio/") or key == "cispo_clip_ratio")
    assert outcome.metrics.get("vespo/phi_seq_mean", 1.0) == pytest.approx(1.0)


@pytest.mark.rows("GRPO-002")
@pytest.mark.cases("S09")
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_first_pass_ratio_is_exactly_one(dtype, level):
    batch = batch_of(logp=[[-0.337, -13.7, -0.01], [-2.2]], advantage=[1, -1], dtype=dtype)
    leaf = batch.logp.clone().requires_grad_()
    (inputs,) = micro_batches(batch, loss_config("dapo"), leaf, [[0, 1]])
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


@pytest.mark.parametrize(
    ("name", "options", "whole"),
    [
        ("dapo", {}, False),
        ("clip_cov", {}, False),
        ("dppo", {}, False),
        ("dapo", {"importance_sampling_level": "sequence"}, True),
        ("dapo", {"importance_sampling_level": "sequence_token"}, True),
        *((name, {}, True) for name in ("luspo", "vespo", "gmpo", "rloo")),
        ("dapo", {"off_policy_mask_threshold": 0.5}, True),
        ("dapo", {"correction": Correction("token_mask")}, False),
        ("dapo", {"correction": Correction("sequence_mask")}, True),
    ],
)
def test_what_keeps_the_samples_of_a_rollout_in_one_row(name, options, whole):
    assert objective(name, **options).per_rollout == whole


@pytest.mark.parametrize(
    ("name", "options", "entropies", "every", "before"),
    [
        ("dapo", {}, False, False, set()),
        ("dapo", {"entropy_coef": 0.1}, True, True, set()),
        ("dapo", {"use_adaptive_entropy": True}, True, True, set()),
        ("dapo", {"top_entropy_quantile": 0.5}, True, True, {"entropy"}),
        ("clip_cov", {}, False, True, {"old"}),
        ("kl_cov", {"beta": 0.1}, False, True, {"old", "reference"}),
    ],
)
def test_what_needs_entropies_terms_without_signal_and_a_scoring_pass(name, options, entropies, every, before):
    run = objective(name, **options)
    assert (run.uses_entropy, run.needs_every_term, run.before) == (entropies, every, before)


def test_registered_configs_state_their_reduction():
    assert {name: loss_config(name).reduction for name in LOSS_NAMES} == {
        "grpo": "rollout_mean",
        "bnpo": "micro_batch",
        "dr_grpo": "rollout_constant",
        "dapo": "tokens",
        "cispo": "tokens",
        "sapo": "rollout_mean",
        "luspo": "rollouts",
        "vespo": "tokens",
        "gmpo": "rollout_mean",
        "dppo": "tokens",
        "clip_cov": "tokens",
        "kl_cov": "tokens",
        "rloo": "rollout_mean",
    }


@pytest.mark.rows("GRPO-032", "GRPO-038", "GRPO-239", "GRPO-241")
@pytest.mark.cases("S11")
def test_the_bound_of_cispo_is_the_weight_itself():
    """Ratios 1, 6 and 0.1 with log-prob -0.5 each; epsilon_high is left at its default."""
    old = [-0.5 - math.log(ratio) for ratio in (1, 6, 0.1)]
    batch = batch_of(logp=[[-0.5] * 3], old=[old], advantage=[1.0])
    outcome = step(objective("cispo"), batch)
    assert outcome.loss == pytest.approx(1.016667, abs=1e-6)
    assert outcome.grad.tolist() == pytest.approx([-0.333333, -1.666667, -0.033333], abs=1e-6)
    assert outcome.metrics["cispo_clip_ratio"] == pytest.approx(1 / 3)
    assert not any(key.startswith("clip_ratio/") for key in outcome.metrics)
    against = step(objective("cispo"), batch_of(logp=[[-0.5] * 3], old=[old], advantage=[-1.0]))
    assert against.metrics["cispo_clip_ratio"] == 0.0


@pytest.mark.rows("GRPO-239")
def test_the_clipped_share_of_cispo_counts_rollouts_at_sequence_level():
    batch = batch_of(logp=[[-0.5, -0.5, -0.5], [-0.5]], old=[[-3.5] * 3, [-0.5]], advantage=[1.0, 1.0])
    assert step(objective("cispo"), batch).metrics["cispo_clip_ratio"] == 0.75
    assert step(objective("cispo", importance_sampling_level="sequence"), batch).metrics["cispo_clip_ratio"] == 0.5


@pytest.mark.rows("GRPO-033", "GRPO-040", "GRPO-041")
def test_the_gate_of_sapo_fades_faster_for_larger_temperatures():
    def slope(log_ratio, advantage):
        return abs(step(objective("sapo"), batch_of(logp=[[log_ratio]], old=[[0.0]], advantage=[advantage])).grad.item())

    assert slope(0.0, 1.0) == pytest.approx(1.0) and slope(0.0, -1.0) == pytest.approx(1.0)
    assert slope(1.5, -1.0) < slope(1.5, 1.0) < slope(1.0, 1.0) < math.e


@pytest.mark.rows("GRPO-035", "GRPO-042", "GRPO-043", "GRPO-044", "GRPO-045", "GRPO-240")
def test_the_weight_of_vespo():
    """One rollout of two terms, sum of log-ratios s: phi = exp(lambda + k s - lambda e^s), its mean over rollouts is logged."""
    for advantage, k, decay in ((1.0, 2.0, 3.0), (0.0, 2.0, 3.0), (-1.0, 3.0, 2.0)):
        outcome = step(objective("vespo"), batch_of(logp=[[-1.0, -0.5]], old=[[-1.3, -0.4]], advantage=[advantage]))
        phi = math.exp(decay + k * 0.2 - decay * math.exp(0.2))
        assert outcome.metrics["vespo/phi_seq_mean"] == pytest.approx(phi)
        assert outcome.grad.tolist() == pytest.approx([-phi * advantage / 2] * 2)
    far = step(objective("vespo", vespo_k_pos=50.0, vespo_lambda_pos=1e-4), batch_of(logp=[[0.0]], old=[[-18.0]], advantage=[1.0]))
    assert far.metrics["vespo/phi_seq_mean"] == 0.0, "an infinite weight counts as 0"
    half = math.exp(3 - 3 * math.exp(-0.5) + 2 * -0.5)
    for log_ratios in ([30.0, -20.5], [19.5, -30.0]):  # each within +-20
        both = step(objective("vespo"), batch_of(logp=[[0.0, 0.0]], old=[[-x for x in log_ratios]], advantage=[1.0]))
        assert both.metrics["vespo/phi_seq_mean"] == pytest.approx(half if log_ratios[0] < 20 else math.exp(3 - 3.0), rel=1e-6)
    below = step(objective("vespo"), batch_of(logp=[[-99.0]], old=[[0.0]], advantage=[1.0]))
    assert below.metrics["vespo/phi_seq_mean"] == pytest.approx(math.exp(3) * 1e-16, rel=1e-6)


@pytest.mark.rows("GRPO-048")
def test_gspo_token_has_the_value_of_gspo_and_each_token_its_own_gradient():
    """With equal advantages in a rollout the gradient is the same as the sequence form's (GSPO, section 4.3), except where tokens are masked."""
    batch = batch_of(logp=[[-1, -0.5, -2], [-0.7, -1.2]], old=[[-1.1, -0.6, -1.9], [-0.8, -1.1]], advantage=[1, -0.5])
    whole, tokens = (step(objective("grpo", importance_sampling_level=level), batch) for level in ("sequence", "sequence_token"))
    assert tokens.loss == pytest.approx(whole.loss, abs=1e-12)
    torch.testing.assert_close(tokens.grad, whole.grad, atol=1e-12, rtol=0)
    assert tokens.metrics == whole.metrics
    batch.advantage = torch.tensor([1.0, -0.5], dtype=torch.float64)
    (inputs,) = micro_batches(batch, loss_config("dapo"), leaf := batch.logp.clone().requires_grad_(), [[0, 1]])
    importance_ratio(inputs, "sequence_token")[0].backward()
    assert torch.count_nonzero(leaf.grad) == 1


def test_gspo_is_grpo_with_sequence_ratios_and_its_paper_s_clip_range():
    config = loss_config("gspo")
    assert (config.name, config.importance_sampling_level, config.epsilon, config.epsilon_high) == ("grpo", "sequence", 3e-4, 4e-4)


def test_gmpo_clips_each_log_ratio_on_the_side_of_its_advantage():
    """Log-ratios [1, 0.1] with A = +1 and [-1, 1] with A = -2, bounds 0.4: exp(0.25) and exp(0.3); the clipped tokens have no gradient."""
    batch = batch_of(logp=[[0.0, -1.0], [-2.0, 0.0]], old=[[-1.0, -1.1], [-1.0, -1.0]], advantage=[1.0, -2.0])
    outcome = step(objective("gmpo"), batch)
    first, second = math.exp(0.25), math.exp(0.3)
    assert outcome.loss == pytest.approx((-first + 2 * second) / 2)
    assert outcome.grad.tolist() == pytest.approx([0.0, -first / 4, 0.0, second / 2])
    assert (outcome.metrics["clip_ratio/high_mean"], outcome.metrics["clip_ratio/low_mean"]) == (0.25, 0.25)
    wide = step(objective("gmpo", log_epsilon=2.0), batch)
    assert wide.loss == pytest.approx((-math.exp(0.55) + 2 * 1.0) / 2)


def test_dppo_masks_by_the_probability_that_moved():
    """A rare token whose ratio is 5 stays, a frequent one whose ratio is 1.4 goes; movement against the advantage's push stays."""
    sampler = [0.01, 0.5, 0.5, 0.5]
    now = [0.05, 0.7, 0.7, 0.3]
    batch = batch_of(logp=[[math.log(p) for p in now[:2]], [math.log(p) for p in now[2:]]], advantage=[1.0, -1.0])
    batch.sampler = torch.tensor([math.log(p) for p in sampler], dtype=torch.float64)
    outcome = step(objective("dppo"), batch)
    assert outcome.grad.tolist() == pytest.approx([-5.0 / 4, 0.0, 1.4 / 4, 0.0])
    assert outcome.loss == pytest.approx((-5.0 + 1.4) / 4)
    assert (outcome.metrics["clip_ratio/high_mean"], outcome.metrics["clip_ratio/low_mean"]) == (0.25, 0.25)
    loose = step(objective("dppo", delta_low=0.25, delta_high=0.1), batch)
    assert loose.grad.tolist() == pytest.approx([-5.0 / 4, 0.0, 1.4 / 4, 0.6 / 4])
