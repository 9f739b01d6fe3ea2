"""The KL of a run: in the loss or the reward, with a coefficient that follows it and a reference that follows the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from batches import batch_of, rollout
from models_for_tests import tiny_model
from programs import Programs
from run_configs import composed, default_with
from run_folders import final_weights, metrics
from small_runs import Cli

from rlexp.algorithms.grpo import GRPO
from rlexp.batching.terms import flatten
from rlexp.config.advice import warnings
from rlexp.config.algorithm import DAPOLossConfig, GRPOConfig
from rlexp.config.validate import problems
from rlexp.losses.dapo import dapo
from rlexp.models.companion import Companion
from rlexp.models.network import Network
from rlexp.records.rollout import GenerationBatch


def train_lines(cli: Cli) -> list[dict]:
    return [line for line in metrics(cli.run) if line["split"] == "train"]


@pytest.mark.parametrize(("estimator", "per_token"), [("k1", [0.5, -0.1, -0.3]), ("k2", [0.125, 0.005, 0.045]), ("abs", [0.5, 0.1, 0.3])])
def test_every_estimator_can_be_in_the_reward(estimator, per_token):
    batch = batch_of([[rollout([5], [20, 21], 1.0, 0, 0), rollout([5], [22], 1.0, 0, 1)]])
    algo = GRPO(GRPOConfig(beta=0.5, kl_in="reward", kl_estimator=estimator, scale_rewards="none"), DAPOLossConfig(), dapo)
    samples = algo.samples(batch)
    terms = flatten(samples)
    terms.columns = {"old": np.array([-1, -2, -0.5]), "reference": np.array([-1.5, -1.9, -0.2])}
    algo.advantages(batch, samples, terms)
    rewards = np.array([1 - 0.5 * sum(per_token[:2]), 1 - 0.5 * per_token[2]])
    assert [each.advantage for each in batch.rollouts] == pytest.approx((rewards - rewards.mean()).tolist(), abs=1e-12)
    assert batch.metrics["kl"] == (pytest.approx(sum(per_token)), 3.0)
    assert algo.needs.before == {"old", "reference"} and not algo.objective("policy").beta, "no term of the loss as well"


def two_rollouts(config: GRPOConfig, active: Sequence[bool] = (True, True, True)) -> tuple[GRPO, GenerationBatch]:
    """Two tokens with reward 1 and one with 0, KL (k2) of the three 0.125, 0.005, 0.045, after the advantages are made."""
    algo = GRPO(config, DAPOLossConfig(), dapo)
    batch = batch_of([[rollout([5], [20, 21], 1.0, 0, 0), rollout([5], [22], 0.0, 0, 1)]])
    samples = algo.samples(batch)
    terms = flatten(samples)
    terms.active_L = np.array(active)
    terms.columns = {"old": np.array([-1, -2, -0.5]), "reference": np.array([-1.5, -1.9, -0.2])}
    algo.advantages(batch, samples, terms)
    return algo, batch


def in_reward(**options) -> GRPOConfig:
    return GRPOConfig(beta=0.5, kl_in="reward", kl_estimator="k2", scale_rewards="none", **options)


def test_a_masked_token_has_no_kl_in_the_reward():
    """A token whose sampler gave no number (generation.on_missing_logprob=mask)."""
    _, batch = two_rollouts(in_reward(), active=[False, True, True])
    gap = (1 - 0.5 * 0.005) - (0 - 0.5 * 0.045)
    assert [each.advantage for each in batch.rollouts] == pytest.approx([gap / 2, -gap / 2], abs=1e-12)
    assert batch.metrics["kl"] == (pytest.approx(0.05), 2.0), "of the two others"


def test_the_coefficient_of_a_kl_in_the_reward_follows_its_mean():
    """The batch is priced with the coefficient it began with; then 0.5 (1 + 1 (0.175 / 3 / 0.05 - 1)) of the KL's mean over three tokens."""
    algo, batch = two_rollouts(in_reward(kl_target=0.05, kl_rate=1.0))
    gap = (1 - 0.5 * 0.13) - (0 - 0.5 * 0.045)
    assert [each.advantage for each in batch.rollouts] == pytest.approx([gap / 2, -gap / 2], abs=1e-12)
    assert batch.metrics["kl_coef"] == (0.5, 1.0) and algo.kl_coef.beta == pytest.approx(0.5 * 0.175 / 3 / 0.05, abs=1e-12)
    moved = algo.kl_coef.beta
    algo.after_step({"kl": 1.0})
    assert algo.kl_coef.beta == moved and algo.objective("policy").beta == 0.0, "once per batch, and no term of the loss"
    again = GRPO(in_reward(kl_target=0.05), DAPOLossConfig(), dapo)
    again.load_state_dict(algo.state_dict())
    assert again.kl_coef.beta == moved and again.objective("policy").beta == 0.0
    unmeasured, batch = two_rollouts(in_reward(kl_target=0.05), active=[False] * 3)
    assert batch.metrics["kl"] == (0.0, 0.0) and unmeasured.kl_coef.beta == 0.5
    assert "kl_coef" not in two_rollouts(in_reward())[1].metrics, "a fixed one is in the config"


def test_the_coefficient_of_a_kl_in_the_loss_follows_that_of_the_step():
    config = GRPOConfig(beta=0.5, kl_target=0.05, kl_rate=1.0)
    algo, batch = two_rollouts(config)
    assert batch.metrics["kl_coef"] == (0.5, 1.0) and "kl" not in batch.metrics
    algo.after_step({"kl": 0.045})
    assert algo.kl_coef.beta == algo.objective("policy").beta == pytest.approx(0.45, abs=1e-12)
    algo.after_step({})
    assert algo.objective("policy").beta == pytest.approx(0.45, abs=1e-12), "a step that measured none"
    again = GRPO(config, DAPOLossConfig(), dapo)
    again.load_state_dict(algo.state_dict())
    assert again.objective("policy").beta == algo.objective("policy").beta


def test_the_reference_moves_only_when_told_to():
    moves = {"ref_model_mixup_alpha": 0.3, "ref_model_sync_steps": 7}
    assert GRPO(GRPOConfig(beta=0.5, sync_ref_model=True, **moves), DAPOLossConfig(), dapo).companion_moves == {"reference": (0.3, 7)}
    assert GRPO(GRPOConfig(beta=0.5, **moves), DAPOLossConfig(), dapo).companion_moves == {}


@pytest.mark.rows("GRPO-171", "GRPO-172", "RLOO-051", "RLOO-052")
def test_the_reference_moves_by_alpha_every_so_many_steps():
    network = Network(tiny_model())
    reference, reset = Companion(network, rate=0.6, every=2), Companion(network, rate=1.0, every=3)
    first = [parameter.detach().clone() for parameter in network.parameters()]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.5)
    for step in (1, 2, 3):
        reference.follow(step)
        reset.follow(step)
        expected = [start if step == 1 else 0.6 * (start + 0.5) + 0.4 * start for start in first]
        assert all(torch.allclose(mine, want, atol=1e-12) for mine, want in zip(reference.network.parameters(), expected, strict=True))
        want = first if step < 3 else list(network.parameters())
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(reset.network.parameters(), want, strict=True))


@pytest.mark.rows("GRPO-169", "GRPO-170", "RLOO-050")
def test_a_reference_that_is_reset_before_each_batch_has_no_kl(programs: Programs, tmp_path):
    options = ["algorithm=rloo", "algorithm.num_generations=4", "trainer.max_steps=6"]
    for where in ("frozen", "reset"):
        (tmp_path / where).mkdir()
    frozen, reset = Cli(programs, tmp_path / "frozen"), Cli(programs, tmp_path / "reset")
    assert frozen.train(*options).code == 0
    moves = ["algorithm.sync_ref_model=true", "algorithm.ref_model_mixup_alpha=1", "algorithm.ref_model_sync_steps=2"]
    assert reset.train(*options, *moves).code == 0
    assert [line["kl"] == 0.0 for line in train_lines(frozen)] == [True, True, False, False, False, False]
    assert [line["kl"] for line in train_lines(reset)] == [0.0] * 6


@pytest.mark.rows("GRPO-170", "GRPO-250", "RLOO-050")
@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_a_continued_run_has_the_same_reference_and_coefficient(kl_in, programs: Programs, tmp_path):
    """Stopped within a batch, between two moves of the reference."""
    options = ["algorithm.beta=0.1", f"algorithm.kl_in={kl_in}", "algorithm.kl_estimator=k2", "algorithm.kl_target=1e-4", "algorithm.kl_rate=1"]
    options += ["algorithm.sync_ref_model=true", "algorithm.ref_model_sync_steps=4", "algorithm.num_iterations=2"]
    for where in ("whole", "parts"):
        (tmp_path / where).mkdir()
    whole, parts = Cli(programs, tmp_path / "whole"), Cli(programs, tmp_path / "parts")
    assert whole.train(*options, "trainer.max_steps=10").code == 0
    for steps in (5, 10):
        assert parts.train(*options, f"trainer.max_steps={steps}").code == 0
    assert final_weights(parts.run) == final_weights(whole.run)
    assert train_lines(parts) == train_lines(whole)
    coefficients = [line["kl_coef"] for line in train_lines(whole)]
    assert coefficients[0] == 0.1 and coefficients[4] != 0.1 and coefficients[8] not in (0.1, coefficients[4])


@pytest.mark.rows("GRPO-270")
def test_a_reference_that_cannot_move_is_named():
    assert any("algorithm.sync_ref_model=true needs algorithm.beta > 0" in text for text in problems(default_with(algorithm__sync_ref_model=True)))
    assert any("algorithm.kl_target needs algorithm.beta > 0" in text for text in problems(default_with(algorithm__kl_target=0.1)))
    config = composed("experiment=none", "peft=lora", "algorithm.beta=0.1")
    config.algorithm.sync_ref_model = True
    assert any("does not go with peft=lora" in text for text in problems(config))
    assert any("ref_model_sync_steps=8 has no effect" in text for text in warnings(default_with(algorithm__ref_model_sync_steps=8)))
    assert not any("no effect without" in text for text in warnings(default_with(algorithm__sync_ref_model=True, algorithm__ref_model_sync_steps=8)))
