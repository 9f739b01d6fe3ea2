"""Baselines, KL in the reward, its coefficient and dynamic sampling are the same whether one process plays or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster.test_fsdp2_runs import saved
from programs import Programs
from run_folders import metrics
from small_runs import Cli
from torch import Tensor

OPTIONS = [
    *("algorithm=rloo", "algorithm.num_generations=4", "algorithm.normalize_advantages=true", "algorithm.kl_target=1e-3", "algorithm.sync_ref_model=true"),
    *("algorithm.ref_model_sync_steps=2", "rollout.refill=true", "rollout.max_refills=2", "trainer.max_steps=4", "evaluation=none"),
    *("model.dtype=float64", "optimizer=sgd", "optimizer.learning_rate=0.05"),
]


STRATEGIES = ("ddp", "fsdp2")


def trained(programs: Programs, where: Path, options: list[str]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Final weights and training lines."""
    where.mkdir()
    cli = Cli(programs, where)
    done = cli.train(*options)
    assert done.code == 0, done.err[-2000:]
    return saved(cli.run), [line for line in metrics(cli.run) if line["split"] == "train"]


def same(one: tuple[dict[str, Tensor], list[dict[str, Any]]], two: tuple[dict[str, Tensor], list[dict[str, Any]]]) -> None:
    """Equal up to the order of sums."""
    assert max(float((one[0][name] - two[0][name]).abs().max()) for name in one[0]) < 1e-9
    for line, other in zip(one[1], two[1], strict=True):
        assert other == pytest.approx(line, abs=1e-9)


CONTROLLED = [
    *("algorithm=grpo", "algorithm.num_generations=4", "algorithm.beta=0.1", "algorithm.kl_target=1e-3", "loss.top_entropy_quantile=0.4"),
    *("loss.use_adaptive_entropy=true", "loss.entropy_target=50", "loss.entropy_coef=0.01", "trainer.max_steps=4", "evaluation=none"),
    *("model.dtype=float64", "optimizer=sgd", "optimizer.learning_rate=0.05"),
]
"""controllers that follow numbers of a whole step: the KL in the loss, the entropy of the tokens above one threshold"""


@pytest.mark.rows("GRPO-011", "GRPO-070", "GRPO-076")
def test_controllers_and_the_entropy_threshold_see_all_processes(programs: Programs, tmp_path):
    one = trained(programs, tmp_path / "one", CONTROLLED)
    for strategy in STRATEGIES:
        same(one, trained(programs, tmp_path / strategy, [*CONTROLLED, f"strategy={strategy}", "cluster.processes_per_node=2"]))
    lines = one[1]
    assert lines[3]["entropy_coef"] == pytest.approx(0.025) and lines[3]["kl_coef"] != lines[0]["kl_coef"] and lines[0]["entropy_kept"] > lines[0]["entropy"]


@pytest.mark.rows("RLOO-001", "GRPO-011")
def test_two_processes_train_what_one_trains(programs: Programs, tmp_path):
    one = trained(programs, tmp_path / "one", OPTIONS)
    for strategy in STRATEGIES:
        same(one, trained(programs, tmp_path / strategy, [*OPTIONS, f"strategy={strategy}", "cluster.processes_per_node=2"]))
    lines = one[1]
    assert lines[2]["kl"] != 0.0 and lines[2]["kl_coef"] != lines[0]["kl_coef"]
