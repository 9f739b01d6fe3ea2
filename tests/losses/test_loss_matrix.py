"""Every allowed loss and option against the literal reading in loss_literal.py: value, gradient and metrics, whole and in micro-batches."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import loss_literal as literal
import pytest
import torch
from loss_batches import CASES, LOSS_NAMES, OWN, OWN_RATIO, Batch, objective, own_options, random_batch, step
from loss_product import KL, PRODUCT, Cell, made_of, options_of

from rlexp.components import register_all
from rlexp.losses.objective import PolicyObjective
from rlexp.registry import LOSSES

WHOLE, PARTS = [list(range(6))], [[3], [5, 0], [4], [2, 1]]


def rollouts_of(batch: Batch) -> list[literal.Rollout]:
    """A batch as the literal reading takes it."""
    rollouts = [literal.Rollout(float(advantage)) for advantage in batch.advantage]
    for i in (i for i in range(len(batch.rollout)) if batch.active[i]):
        logp, entropy = (literal.Dual(float(x[i]), {(kind, i): 1.0}) for kind, x in (("logp", batch.logp), ("entropy", batch.entropy)))
        old = None if batch.old is None else float(batch.old[i])
        token = literal.Token(i, logp, entropy, old, float(batch.sampler[i]), float(batch.reference[i]), float(batch.scored_entropy[i]))
        token.draw = float(batch.draws[i])
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
    assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & {"__import__", "exec", "eval"}


def test_every_registered_loss_is_here():
    register_all()
    assert sorted(LOSS_NAMES) == [name for name in LOSSES.names() if LOSSES.entry(name).origin.startswith("rlexp.")]


def compare(run: PolicyObjective, seed: int, parts: list[list[int]]) -> None:
    """One objective on one random batch: value, gradients and metrics as read literally."""
    batch, own, correction = random_batch(seed, fresh=seed % 3 == 0), vars(run.config), run.correction
    bounds = None if correction is None else (correction.mode, correction.clip_min, correction.clip_max, correction.normalize)
    level = own.get("importance_sampling_level", "")
    wanted = literal.Options(own["name"], own, level, run.beta, run.use_bias_correction_kl, parts=parts, longest=batch.max_completion_length, correction=bounds)
    wanted.off_policy, wanted.top, wanted.entropy_coef = own["off_policy_mask_threshold"], own["top_entropy_quantile"], own["entropy_coef"]
    rollouts = rollouts_of(batch)
    expected = literal.objective(rollouts, wanted)
    outcome = step(run, batch, parts)
    assert outcome.metrics == pytest.approx(literal.metrics(rollouts, wanted), abs=1e-6)
    assert outcome.loss == pytest.approx(expected.value, abs=1e-9)
    torch.testing.assert_close(outcome.grad, slopes(expected, "logp", len(batch.logp)), atol=1e-9, rtol=1e-9)
    entropy_grad = torch.zeros_like(batch.logp) if outcome.entropy_grad is None else outcome.entropy_grad
    torch.testing.assert_close(entropy_grad, slopes(expected, "entropy", len(batch.logp)), atol=1e-9, rtol=1e-9)


@pytest.mark.rows("GRPO-010", "GRPO-023", "GRPO-025", "GRPO-026", "GRPO-032", "GRPO-033", "GRPO-034", "GRPO-035", "GRPO-048", "RLOO-004", "RLOO-005")
@pytest.mark.rows("GRPO-003", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031", "GRPO-036", "GRPO-037", "GRPO-039", "GRPO-233", "GRPO-234", "GRPO-235")
@pytest.mark.rows("GRPO-236", "GRPO-237", "GRPO-238", "GRPO-239", "GRPO-240", "GRPO-241")
@pytest.mark.parametrize(("name", "level"), CASES)
def test_equals_the_literal_reading(name: str, level: str):
    kinds: Any = itertools.product(options_of(name), KL, (WHOLE, PARTS))
    for seed, (options, kl, parts) in enumerate(kinds):
        compare(objective(name, **kl, **own_options(name, importance_sampling_level=level), **options), seed, parts)


def is_refused(cell: Cell) -> bool:
    """What has no meaning: another level than the loss's own, a weight of rollouts inside vespo's, a weight for the sampler on a ratio to it."""
    if cell.level != OWN and (cell.name in OWN_RATIO or (cell.name == "luspo" and cell.level != "sequence")):
        return True
    return cell.correction is not None and (cell.name == "dppo" or (cell.name == "vespo" and cell.correction.per_rollout))


@pytest.mark.rows(
    "GRPO-010", "GRPO-026", "GRPO-051", "GRPO-052", "GRPO-053", "GRPO-054", "GRPO-055", "GRPO-056", "GRPO-057", "GRPO-058", "GRPO-059", "GRPO-063"
)
@pytest.mark.rows("GRPO-064", "GRPO-067", "GRPO-068", "GRPO-076", "GRPO-263")
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_every_loss_ratio_correction_and_mask(name: str, record_property: Any):
    """The whole product: what validation allows equals the literal reading, whole and in micro-batches; the rest is refused by a rule that names the key."""
    allowed = refused = 0
    for seed, cell in enumerate(PRODUCT):
        if cell.name != name:
            continue
        assert bool(cell.problems) == is_refused(cell), cell
        if cell.problems:
            (problem,) = cell.problems
            assert problem.startswith("correction=" if cell.level == OWN else "loss.importance_sampling_level"), problem
            refused += 1
            continue
        run = made_of(cell, seed)
        for parts in (WHOLE, PARTS):
            compare(run, seed // 2, parts)
        allowed += 1
    record_property("matrix", (allowed, refused, len(PRODUCT)))
