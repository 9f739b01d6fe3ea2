"""The exactness tests of whole steps again, with parts of the weights in two processes: each rank runs pytest, and the same tests at the same time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import step_gradients
import torch
from cluster.world import in_worlds
from programs import Programs
from training.test_invariance import CASES

from rlexp.config.strategy import FSDP2StrategyConfig, StrategyConfig
from rlexp.distributed.strategy.single import SingleStrategy

TESTS = Path(__file__).resolve().parent.parent
STEPS = {
    "training/test_invariance.py": "splits_give_one",
    "algorithms/test_entropy_and_correction.py": "splits_and_steps",
    "algorithms/test_rloo.py": "rows_do_not or no_gradient or forked",
    "algorithms/test_sdpo_step.py": "not bnpo",
    "losses/test_covariance.py": "does_not_depend_on_the_split",
}
"""file -> which of its tests (-k); bnpo is left out, whose definition is the split over rows and so over processes (losses/test_loss_ranks.py has it)"""
ONE_GRADIENT = ("training/test_invariance.py",)
"""files whose tests compare all gradients of a test with its first, so that one process has to make the first alone"""


def on_ranks(file: str, which: str, path: str) -> int:
    """Whatever a test does with a gradient is done with that of two processes, which must be that of one. Rank 0 writes how many were compared."""
    from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy

    torch.set_num_threads(1)
    two, one = FSDP2Strategy(FSDP2StrategyConfig(timeout=60)), SingleStrategy(StrategyConfig())
    both, compared, seen = step_gradients.gradients, 0, set()

    def same(*arguments: Any, **options: Any) -> Any:
        nonlocal compared
        found, test = both(*arguments, strategy=two, **options), os.environ["PYTEST_CURRENT_TEST"]
        if file in ONE_GRADIENT and test in seen:
            return found
        seen.add(test)
        compared += 1
        alone = both(*arguments, strategy=one, **options)
        for mine, theirs in zip(found[0], alone[0], strict=True):
            assert torch.allclose(mine, theirs, atol=1e-9, rtol=0)
        for metrics, expected in zip(found[1], alone[1], strict=True):
            assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-9)
        return found

    step_gradients.gradients, step_gradients.BUDGETS = same, (25,)
    code = pytest.main([str(TESTS / file), "-k", which, "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"])
    if two.collectives.rank == 0:
        Path(path).write_text(str(compared))
    two.close()
    return int(code)


@pytest.mark.rows("GRPO-010", "GRPO-011", "GRPO-012", "RLOO-001", "SDPO-001", "SDPO-002", "SDPO-008")
@pytest.mark.parametrize("file", STEPS)
def test_steps_of_two_processes_are_exact(file: str, programs: Programs, tmp_path: Path) -> None:
    compared = tmp_path / "compared.txt"
    in_worlds(programs, tmp_path / "jobs", {"world": 2, "call": "cluster.test_exactness:on_ranks", "arguments": [file, STEPS[file], str(compared)]})
    assert int(compared.read_text()) >= (len(CASES) if file in ONE_GRADIENT else 3)
