"""Every allowed loss and option against the literal reading in loss_literal.py, in value and in gradient; splits change nothing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import loss_literal as literal
import pytest
import torch
from loss_batches import CASES, Batch, objective, own_options, random_batch, step

PARTS = [[3], [5, 0], [4], [2, 1]]

OWN: dict[str, list[dict[str, Any]]] = {
    "cispo": [{}, {"epsilon_high": 1.1}],
    "sapo": [{}, {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.7}],
    "vespo": [{}, {"vespo_k_pos": 1.5, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.3, "vespo_lambda_neg": 2.5}],
}
"""options to try; the clip family shares one list"""
CLIP = [{"epsilon": 0.1, "epsilon_high": 0.5}, {"delta": 1.3}]


def rollouts_of(batch: Batch) -> list[literal.Rollout]:
    """A batch as the literal reading takes it."""
    rollouts = [literal.Rollout(float(advantage)) for advantage in batch.advantage]
    for index in range(len(batch.rollout)):
        if batch.active[index]:
            token = literal.Token(index, literal.Dual(float(batch.logp[index]), {("logp", index): 1.0}), literal.Dual(0.0))
            token.old = None if batch.old is None else float(batch.old[index])
            token.reference = float(batch.reference[index])
            rollouts[int(batch.rollout[index])].tokens.append(token)
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


@pytest.mark.rows("GRPO-010", "GRPO-023", "GRPO-025", "GRPO-026", "GRPO-032", "GRPO-033", "GRPO-034", "GRPO-035", "GRPO-048")
@pytest.mark.parametrize(("name", "level"), CASES)
def test_equals_the_literal_reading(name, level):
    seed = 0
    for options in OWN.get(name, CLIP):
        for beta, bias in ((0.0, True), (0.3, True), (0.3, False)):
            for parts in ([list(range(6))], PARTS):
                seed += 1
                batch = random_batch(seed, fresh=seed % 3 == 0)
                run = objective(name, beta=beta, bias=bias, **own_options(name, importance_sampling_level=level), **options)
                wanted = literal.Options(name, vars(run.config), level, beta, bias, batch.max_completion_length, parts)
                expected = literal.objective(rollouts_of(batch), wanted)
                outcome = step(run, batch, parts)
                assert outcome.loss == pytest.approx(expected.value, abs=1e-11)
                torch.testing.assert_close(outcome.grad, slopes(expected, "logp", len(batch.logp)), atol=1e-11, rtol=1e-9)
