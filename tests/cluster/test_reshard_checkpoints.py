"""A checkpoint of two ranks continued by one, and back; with parts of the weights and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.test_fsdp2_runs import COMBINATIONS, EXACT, difference, metrics, network_names
from cluster.world import in_worlds, run_of
from programs import Programs

MOMENTUM = ["optimizer=sgd", "optimizer.momentum=0.9", "trainer.max_steps=6", "checkpoint.steps=2"]
"""a state of the optimizer that is a sum of gradients, so that it can be compared as exactly as they can"""


def to(step: int) -> dict[str, str]:
    """Killed before that step is made: the checkpoint before it is the newest."""
    return {"RLEXP_FAULT": f"{step}:backward:before", "RLEXP_FAULT_RANK": "0"}


@pytest.mark.rows("GRPO-250")
@pytest.mark.parametrize("name", ["grpo", "sdpo ema", "agents", "lora sdpo"])
def test_other_numbers_of_processes_go_on_with_a_checkpoint(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*EXACT, *COMBINATIONS[name], *MOMENTUM]
    folder = tmp_path / "moved"
    in_worlds(
        programs,
        tmp_path / "jobs",
        run_of(tmp_path / "one", 1, options),
        run_of(folder, 2, options, "fsdp2", code=-9, env=to(2)),
        run_of(folder, 1, options, "single", code=-9, env=to(4)),
        run_of(folder, 3, options, "fsdp2", code=-9, env=to(5)),
        run_of(folder, 2, options, "ddp"),
    )
    for network in network_names(tmp_path / "one"):
        assert difference(tmp_path / "one", folder, network) < 1e-9
    for line, other in zip(metrics(tmp_path / "one"), metrics(folder), strict=True):
        assert other == pytest.approx(line, abs=1e-8)
