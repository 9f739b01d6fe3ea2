"""The schedule ends at the last step, not before."""

from __future__ import annotations

import pytest

from rlexp.config.training import AdamWConfig
from rlexp.training.optimizer import learning_rate


@pytest.mark.cases("S13")
@pytest.mark.rows("GRPO-108")
def test_linear_schedule_over_sixteen_steps() -> None:
    config = AdamWConfig(learning_rate=1.6e-5)
    rates = [learning_rate(config, step, 16) for step in range(16)]
    assert rates[0] == pytest.approx(1.6e-5) and rates[8] == pytest.approx(8e-6) and rates[15] == pytest.approx(1e-6)


def test_warm_up_then_constant_or_cosine() -> None:
    config = AdamWConfig(learning_rate=1.0, warmup_steps=4, schedule="constant")
    assert [learning_rate(config, step, 10) for step in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    config.schedule = "cosine"
    assert learning_rate(config, 4, 10) == pytest.approx(1.0) and learning_rate(config, 7, 10) == pytest.approx(0.5)
    config.schedule = "linear"
    assert learning_rate(config, 9, 10) == pytest.approx(1 / 6)
