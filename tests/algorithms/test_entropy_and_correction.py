"""Entropy mask, bonus and sampler correction through the real rows of a small model, and through whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import random_batch
from loss_batches import loss_config
from programs import Programs
from small_runs import Cli
from step_gradients import gradients

from rlexp.algorithms.grpo import GRPO
from rlexp.config.algorithm import GRPOConfig
from rlexp.losses.correction import Correction
from rlexp.registry import LOSSES


def algorithm(name: str = "dapo", beta: float = 0.0, correction: Correction | None = None, **options: object) -> GRPO:
    algo = GRPO(GRPOConfig(beta=beta), loss_config(name, **options), LOSSES.load(name))
    if correction is not None:
        algo.use_correction(correction)
    return algo


FLAT = {"vespo_k_pos": 0.1, "vespo_lambda_pos": 0.01, "vespo_k_neg": 0.2, "vespo_lambda_neg": 0.01}
"""exponents that leave something of rollouts whose made-up sampler is far away"""
EVERYTHING: list[dict[str, Any]] = [
    {"top_entropy_quantile": 0.3, "entropy_coef": 0.2},
    {"correction": Correction("sequence_mask", None, 3.0), "off_policy_mask_threshold": 0.5, "beta": 0.1},
    {"name": "vespo", "correction": Correction("token_truncate", None, 3.0), "top_entropy_quantile": 0.5, **FLAT},
    {"name": "grpo", "importance_sampling_level": "sequence_token", "entropy_coef": 0.1, "correction": Correction("sequence_truncate", normalize=True)},
]


@pytest.mark.rows("GRPO-010", "GRPO-026", "GRPO-067", "GRPO-076")
@pytest.mark.parametrize("options", EVERYTHING, ids=lambda options: "-".join(options))
def test_splits_and_steps_give_one_gradient(options):
    """Rows of any size; two steps of a batch have thresholds and means of their own, whatever their rows."""
    for steps in (1, 2):
        whole, metrics = gradients(algorithm(**options), random_batch(1), steps=steps, moved=0.02)
        split, split_metrics = gradients(algorithm(**options), random_batch(1), tokens=25, steps=steps, moved=0.02)
        assert len(whole) == steps and whole[0].abs().max() > 1e-5
        for one, other in zip(whole, split, strict=True):
            assert torch.allclose(one, other, atol=1e-9, rtol=0)
        for mine, theirs in zip(metrics, split_metrics, strict=True):
            assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-9)


@pytest.mark.rows("GRPO-067")
def test_the_bonus_has_a_gradient_and_flat_groups_have_a_part_in_it():
    algo, plain = algorithm(entropy_coef=0.5), algorithm()
    batch = random_batch(1)
    for group in batch.groups:
        for rollout in group.rollouts:
            rollout.reward = 1.0
    assert plain.samples(batch) == [] and len(algo.samples(batch)) == len(batch.rollouts)
    (grad,), (metrics,) = gradients(algo, batch)
    assert grad.abs().max() > 1e-4 and metrics["policy_loss"] == 0.0 and metrics["loss"] == pytest.approx(-0.5 * metrics["entropy_kept"])
    (negative,), _ = gradients(algorithm(entropy_coef=-0.5), batch)
    assert torch.allclose(negative, -grad)


@pytest.mark.rows("GRPO-076")
def test_what_is_scored_first():
    assert algorithm().needs.before == frozenset()
    assert algorithm(top_entropy_quantile=0.5).needs.before == {"entropy"}
    assert algorithm(entropy_coef=0.5).needs.before == frozenset()
    assert algorithm(beta=0.1, correction=Correction("token_mask")).needs.before == {"old", "reference"}


@pytest.fixture
def cli(programs: Programs, tmp_path: Path) -> Cli:
    return Cli(programs, tmp_path)


ADAPTIVE = ["loss.use_adaptive_entropy=true", "loss.entropy_coef=0.01", "loss.entropy_target=50", "loss.top_entropy_quantile=0.5"]


def lines(cli: Cli) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (cli.run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == "train"]


@pytest.mark.rows("GRPO-069", "GRPO-070", "GRPO-075", "GRPO-076", "GRPO-229", "GRPO-231", "GRPO-251", "GRPO-226", "GRPO-227", "GRPO-228")
def test_a_run_with_everything_on_and_its_continuation(cli):
    """The coefficient grows by delta after each step below the target and continues where a checkpoint left it."""
    done = cli.train(*ADAPTIVE, "correction=sequence_mask", "loss.off_policy_mask_threshold=0.5", "trainer.max_steps=2")
    assert done.code == 0, done.err
    done = cli.train(*ADAPTIVE, "correction=sequence_mask", "loss.off_policy_mask_threshold=0.5", "trainer.max_steps=4")
    assert done.code == 0, done.err
    found = lines(cli)
    assert [line["entropy_coef"] for line in found] == pytest.approx([0.01, 0.015, 0.02, 0.025])
    applied = [(line["policy_loss"] - line["loss"]) / line["entropy_kept"] for line in found]
    assert applied == pytest.approx([0.0, 0.015, 0.02, 0.025], abs=1e-5), "the first step applies nothing"
    assert all(line["entropy_kept"] > line["entropy"] for line in found)
    ratios = np.array([[line[f"sampling/importance_sampling_ratio/{part}"] for part in ("min", "mean", "max")] for line in found])
    assert np.allclose(ratios, 1.0, atol=1e-4), "the native sampler has the trainer's probabilities"
    assert "sequence_mask, weights from none to 3" in done.out + done.err


LOGGED = {
    "cispo": "cispo_clip_ratio",
    "sapo": "entropy",
    "luspo": "clip_ratio/region_mean",
    "gspo": "clip_ratio/region_mean",
    "vespo": "vespo/phi_seq_mean",
    "gmpo": "clip_ratio/region_mean",
    "dppo": "clip_ratio/region_mean",
    "clip_cov": "entropy",
    "kl_cov": "entropy",
}


@pytest.mark.rows("GRPO-027", "GRPO-239", "GRPO-240", "GRPO-241")
@pytest.mark.parametrize(("loss", "metric"), LOGGED.items())
def test_every_loss_trains(cli, loss, metric):
    """Two passes over two steps, with a reference: the ratio is not 1 and the KL is corrected by it."""
    more = [] if loss in ("dppo", "gmpo") else ["correction=token_truncate"]
    done = cli.train(f"loss={loss}", "algorithm.num_iterations=2", "algorithm.beta=0.01", "trainer.max_steps=4", "checkpoint=none", "evaluation=none", *more)
    assert done.code == 0, done.err
    found = lines(cli)
    assert len(found) == 4 and all(line["grad_norm"] > 0 and metric in line for line in found)
    assert any(name.startswith("clip_ratio/") for name in found[0]) == metric.startswith("clip_ratio/")
