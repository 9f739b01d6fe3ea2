"""Every allowed loss and option against the literal reading in loss_literal.py, in value and in gradient; splits change nothing."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import loss_literal as literal
import pytest
import torch
from loss_batches import CASES, FIXED, LEVELS, LOSS_NAMES, Batch, loss_config, micro_batches, objective, own_options, random_batch, step
from run_configs import default_with

from rlexp.config.correction import CorrectionConfig
from rlexp.config.validate import problems
from rlexp.losses.correction import Correction

PARTS = [[3], [5, 0], [4], [2, 1]]

OWN: dict[str, list[dict[str, Any]]] = {
    "cispo": [{}, {"epsilon_high": 1.1}],
    "sapo": [{}, {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.7}],
    "gmpo": [{"log_epsilon": 0.1}, {"log_epsilon": 0.3, "log_epsilon_high": 0.05}],
    "dppo": [{"delta_low": 0.05}, {"delta_low": 0.1, "delta_high": 0.02}],
    "vespo": [{}, {"vespo_k_pos": 1.5, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.3, "vespo_lambda_neg": 2.5}],
}
"""options to try; the clip family shares one list"""
CLIP = [{"epsilon": 0.1, "epsilon_high": 0.5}, {"delta": 1.3}]


def rollouts_of(batch: Batch) -> list[literal.Rollout]:
    """A batch as the literal reading takes it."""
    rollouts = [literal.Rollout(float(advantage)) for advantage in batch.advantage]
    for i in (i for i in range(len(batch.rollout)) if batch.active[i]):
        logp, entropy = (literal.Dual(float(x[i]), {(kind, i): 1.0}) for kind, x in (("logp", batch.logp), ("entropy", batch.entropy)))
        old = None if batch.old is None else float(batch.old[i])
        token = literal.Token(i, logp, entropy, old, float(batch.sampler[i]), float(batch.reference[i]), float(batch.scored_entropy[i]))
        rollouts[int(batch.rollout[i])].tokens.append(token)
    return rollouts


def slopes(result: literal.Dual, kind: str, count: int) -> torch.Tensor:
    """Derivatives by each token's number of a kind, [L]."""
    return torch.tensor([result.slopes.get((kind, index), 0.0) for index in range(count)], dtype=torch.float64)


def test_the_literal_reading_shares_no_code():
    tree = ast.parse((Path(literal.__file__)).read_text(encoding="utf-8"))
    modules = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert modules == {"__future__", "math", "dataclasses", "typing"}


def compare(
    name: str, level: str, seed: int, beta: float, bias: bool, parts: list[list[int]], options: dict[str, Any], correction: Correction | None = None
) -> None:
    """One objective on one random batch: value and gradients as read literally."""
    batch = random_batch(seed, fresh=seed % 3 == 0)
    run = objective(name, beta=beta, bias=bias, correction=correction, **own_options(name, importance_sampling_level=level), **options)
    own = vars(run.config)
    bounds = None if correction is None else (correction.mode, correction.clip_min, correction.clip_max, correction.normalize)
    wanted = literal.Options(name, own, level, beta, bias, parts=parts, longest=batch.max_completion_length, correction=bounds)
    wanted.off_policy, wanted.top, wanted.entropy_coef = own["off_policy_mask_threshold"], own["top_entropy_quantile"], own["entropy_coef"]
    expected = literal.objective(rollouts_of(batch), wanted)
    outcome = step(run, batch, parts)
    assert outcome.loss == pytest.approx(expected.value, abs=1e-11)
    torch.testing.assert_close(outcome.grad, slopes(expected, "logp", len(batch.logp)), atol=1e-11, rtol=1e-9)
    entropy_grad = torch.zeros_like(batch.logp) if outcome.entropy_grad is None else outcome.entropy_grad
    torch.testing.assert_close(entropy_grad, slopes(expected, "entropy", len(batch.logp)), atol=1e-11, rtol=1e-9)


@pytest.mark.rows("GRPO-010", "GRPO-023", "GRPO-025", "GRPO-026", "GRPO-032", "GRPO-033", "GRPO-034", "GRPO-035", "GRPO-048")
@pytest.mark.parametrize(("name", "level"), CASES)
def test_equals_the_literal_reading(name, level):
    kinds = itertools.product(OWN.get(name, CLIP), ((0.0, True), (0.3, True), (0.3, False)), ([list(range(6))], PARTS))
    for seed, (options, (beta, bias), parts) in enumerate(kinds):
        compare(name, level, seed, beta, bias, parts, options)


CORRECTIONS = [
    None,
    Correction("token_truncate", None, 1.3),
    Correction("token_mask", 0.7, 1.4),
    Correction("sequence_truncate", 0.6, None),
    Correction("sequence_mask", 0.4, 2.0),
    Correction("sequence_mask", 0.8, 1.2, normalize=True),
]
MASKS: list[dict[str, Any]] = [
    {},
    {"off_policy_mask_threshold": 0.05},
    {"top_entropy_quantile": 0.4},
    {"entropy_coef": 0.2},
    {"off_policy_mask_threshold": 0.01, "top_entropy_quantile": 0.6, "entropy_coef": -0.1},
]


def rule_against(name: str, level: str, correction: Correction | None) -> str:
    """The validation rule that refuses a combination, or nothing."""
    config = default_with()
    config.loss = loss_config(name, **own_options(name, importance_sampling_level=level))
    if correction is not None:
        config.correction = CorrectionConfig(correction.mode, correction.clip_min, correction.clip_max, correction.normalize)
    return " ".join(problem.split("=")[0] for problem in problems(config))


@pytest.mark.rows(
    "GRPO-010", "GRPO-026", "GRPO-051", "GRPO-052", "GRPO-053", "GRPO-054", "GRPO-055", "GRPO-056", "GRPO-057", "GRPO-058", "GRPO-059", "GRPO-063"
)
@pytest.mark.rows("GRPO-064", "GRPO-067", "GRPO-068", "GRPO-076", "GRPO-263")
def test_every_loss_ratio_correction_and_mask(record_property):
    """The whole product: what validation allows equals the literal reading, the rest is refused by a named rule."""
    allowed = refused = 0
    product = list(itertools.product(LOSS_NAMES, LEVELS, CORRECTIONS, MASKS))
    for seed, (name, level, correction, mask) in enumerate(product):
        rule = "loss.importance_sampling_level" if FIXED.get(name, level) != level else rule_against(name, level, correction)
        if rule:
            assert rule in ("loss.importance_sampling_level", "correction", "loss.importance_sampling_level correction"), rule
            refused += 1
            continue
        beta = 0.3 if seed % 2 else 0.0
        compare(name, level, seed, beta, seed % 4 == 1, PARTS if seed % 5 == 0 else [list(range(6))], mask, correction)
        allowed += 1
    assert allowed + refused == len(product)
    record_property("matrix", f"{allowed} allowed, {refused} refused (each by a named rule), {allowed + refused} = product")


SMOOTH = [(name, level) for name, level in CASES if name in ("sapo", "luspo", "gmpo", "dppo") and level != "sequence_token"]


@pytest.mark.parametrize(("name", "level"), SMOOTH)
def test_gradients_are_those_of_the_value(name, level):
    """Numerically, for the losses without a stop-gradient factor; those with one are compared with the literal reading above."""
    batch = random_batch(3)
    weights = None if name == "dppo" else Correction("token_truncate", None, 1.2)
    run = objective(name, beta=0.2, correction=weights, **own_options(name, importance_sampling_level=level))

    def loss(logp: torch.Tensor) -> torch.Tensor:
        return run(micro_batches(batch, run.config.reduction, logp, [list(range(6))])[0]).loss

    assert torch.autograd.gradcheck(loss, batch.logp.clone().requires_grad_(), eps=1e-7, atol=1e-7)
