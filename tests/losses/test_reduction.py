"""The factor of each loss term."""

from __future__ import annotations

import numpy as np
import pytest

from rlexp.config.errors import UserError
from rlexp.losses.reduction import Counts, scales

COUNTS = Counts(
    tokens_L=np.array([2, 2, 3, 3, 3]),
    tokens=5,
    rollouts=4,
    max_completion_length=8,
    microbatch_tokens_L=np.array([2, 2, 3, 3, 3]),
    microbatches=2,
)


@pytest.mark.rows("GRPO-011", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031")
@pytest.mark.parametrize(
    ("name", "denominators"),
    [
        ("tokens", [5, 5, 5, 5, 5]),
        ("rollout_mean", [8, 8, 12, 12, 12]),
        ("rollout_constant", [32, 32, 32, 32, 32]),
        ("rollouts", [4, 4, 4, 4, 4]),
        ("micro_batch", [4, 4, 6, 6, 6]),
    ],
)
def test_scales(name, denominators):
    result = scales(name, COUNTS)
    assert result.dtype == np.float64
    assert result.tolist() == pytest.approx([1 / x for x in denominators], rel=1e-15)


@pytest.mark.rows("GRPO-012")
@pytest.mark.parametrize("name", ["tokens", "rollout_mean", "rollout_constant", "rollouts", "micro_batch"])
def test_an_empty_step_has_finite_scales(name):
    empty = Counts(np.zeros(2, dtype=np.int64), 0, 0, 0, np.zeros(2, dtype=np.int64), 0)
    assert scales(name, empty).tolist() == [1.0, 1.0]
    assert scales(name, Counts(np.zeros(0), 7, 2, 8, np.zeros(0), 1)).shape == (0,)


def test_an_unknown_reduction_lists_the_known_ones():
    with pytest.raises(UserError, match=r"token_mean.*tokens, rollout_mean, rollout_constant, rollouts, micro_batch"):
        scales("token_mean", COUNTS)


def test_micro_batch_needs_a_plan():
    for half in ({}, {"microbatches": 2}, {"microbatch_tokens_L": np.array([1])}):
        with pytest.raises(ValueError, match="plan the step"):
            scales("micro_batch", Counts(np.array([1]), 1, 1, 1, **half))
