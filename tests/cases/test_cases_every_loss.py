"""The cases about losses, for every loss that is registered: the first number a run logs, rollouts that are masked, a far reference."""

from __future__ import annotations

import math

import pytest
import torch
from loss_batches import CASES, batch_of, objective, own_options, step

from rlexp.components import register_all
from rlexp.registry import LOSSES

register_all()
LOGP = math.log(0.1)
"""of every token of a uniform model over ten"""
FIRST: dict[str, float] = {
    **{"grpo": 0.0, "gspo": 0.0, "gmpo": 0.0, "rloo": 0.0},  # means of rollouts: (-1 + 1) / 2
    **dict.fromkeys(("dapo", "bnpo", "dppo", "clip_cov", "kl_cov"), (4 - 2) / 6),  # a mean of tokens
    **dict.fromkeys(("cispo", "vespo"), (4 - 2) / 6 * LOGP),  # times the log-prob, which carries the gradient
    **{"dr_grpo": (4 - 2) / (2 * 8), "luspo": (4 - 2) / 2},
    "sapo": (2 / 1.05 - 2) / 2,
}
"""advantages 1 and -1 for rollouts of 2 and 4 tokens"""


def test_none_is_forgotten() -> None:
    shipped = {name for name in LOSSES.names() if LOSSES.entry(name).origin.startswith("rlexp.")}
    assert set(FIRST) == set(MASKED) | {"gspo"} == shipped | {"gspo"} and {name for name, _ in CASES} == shipped


@pytest.mark.cases("S10", "S09")
@pytest.mark.rows("GRPO-002", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031", "GRPO-032", "GRPO-033", "GRPO-034", "GRPO-035", "RLOO-004")
@pytest.mark.parametrize("loss", FIRST)
def test_the_first_logged_loss(loss: str, case) -> None:
    case.tasks({"prompt": "a"})
    case.answers(*[[{"ids": [4, 5], "logprobs": [LOGP] * 2}, {"ids": [4, 5, 6, 7], "logprobs": [LOGP] * 4}]])
    case.scores(1.0, -1.0)
    table = case.table(probabilities=[0.1] * 10, words=list("pabcdefghi"), eos_ids=[9])
    line = case.train(*table, "model.dtype=float64", "algorithm.num_generations=2", "rollout.max_completion_length=8", f"loss={loss}").metrics()
    assert line["loss"] == pytest.approx(FIRST[loss], abs=1e-6)
    assert line["grad_norm"] > 0, "a loss of 0 is right, a gradient of 0 is not"
    assert all(value == 0 for name, value in line.items() if name.startswith("clip_ratio/") or name == "cispo_clip_ratio")
    assert line.get("vespo/phi_seq_mean", 1.0) == 1.0 and line["sampling/sampling_logp_difference/max"] < 1e-6


MASKED: dict[str, float] = {
    **dict.fromkeys(("dapo", "bnpo", "dppo", "clip_cov", "kl_cov"), 4 / 8),
    **dict.fromkeys(("grpo", "gmpo", "rloo"), (1 + 1 - 1) / 4),  # the empty rollout stays in the count of 4
    **dict.fromkeys(("cispo", "vespo"), 4 / 8 * LOGP),
    **{"dr_grpo": 4 / (4 * 8), "luspo": 4 / 4},
    "sapo": (2 / 1.05 * 2 - 2) / 4,
}
"""advantages 1, -1, 1 and -1 for rollouts of 2, 4, no and 2 tokens that count"""


@pytest.mark.cases("S15")
@pytest.mark.rows("GRPO-012", "GRPO-028", "GRPO-029")
@pytest.mark.parametrize("loss", MASKED)
def test_a_micro_batch_whose_only_rollout_is_masked(loss: str) -> None:
    logp = [[LOGP] * size for size in (2, 4, 2, 2)]
    active = [[1] * 2, [1] * 4, [0] * 2, [1] * 2]
    run = objective(loss, beta=0.1)
    for parts in ([[0, 1, 2, 3]], [[0], [1], [2], [3]], [[0, 1, 2], [3]]):
        batch = batch_of(logp=logp, reference=logp, advantage=[1, -1, 1, -1], active=active, max_completion_length=8)
        outcome = step(run, batch, parts)
        if loss != "bnpo" or len(parts) == 1:  # bnpo is a mean of micro-batches by definition
            assert outcome.loss == pytest.approx(MASKED[loss], abs=1e-9)
        assert outcome.metrics["kl"] == 0.0 and all(math.isfinite(value) for value in outcome.metrics.values())


@pytest.mark.cases("S07")
@pytest.mark.rows("GRPO-023", "GRPO-025")
@pytest.mark.parametrize(("name", "level"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_far_reference_does_not_overflow(name: str, level: str, bias: bool) -> None:
    """float32, policy [-101, -1], reference [-1, -0.5]; the ratio of the loss is in the corrected term, whatever its level."""
    batch = batch_of(logp=[[-101, -1]], reference=[[-1, -0.5]], advantage=[0.0], dtype=torch.float32)
    run = objective(name, beta=0.1, bias=bias, **own_options(name, importance_sampling_level=level))
    outcome = step(run, batch)
    assert math.isfinite(outcome.loss) and torch.isfinite(outcome.grad).all() and outcome.grad[0] < 0
    batch.active = torch.tensor([False, True])
    masked = step(run, batch)
    assert masked.metrics["kl"] == pytest.approx(0.148721, abs=1e-6) and masked.grad[0] == 0
