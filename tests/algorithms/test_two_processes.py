"""Baselines, KL in the reward, its coefficient and dynamic sampling are the same whether one process plays or two."""

from __future__ import annotations

import pytest
from programs import Programs
from run_folders import metrics
from safetensors.torch import load_file
from small_runs import Cli

OPTIONS = [
    *("algorithm=rloo", "algorithm.num_generations=4", "algorithm.normalize_advantages=true", "algorithm.kl_target=1e-3", "algorithm.sync_ref_model=true"),
    *("algorithm.ref_model_sync_steps=2", "rollout.refill=true", "rollout.max_refills=2", "trainer.max_steps=4", "evaluation=none"),
    *("model.dtype=float64", "optimizer=sgd", "optimizer.learning_rate=0.05"),
]


@pytest.mark.rows("RLOO-001", "GRPO-011")
def test_two_processes_train_what_one_trains(programs: Programs, tmp_path):
    made = []
    for name, more in (("one", []), ("two", ["strategy=ddp", "cluster.processes_per_node=2"])):
        (tmp_path / name).mkdir()
        cli = Cli(programs, tmp_path / name)
        done = cli.train(*OPTIONS, *more)
        assert done.code == 0, done.err[-2000:]
        weights = load_file(cli.run / "checkpoints" / "latest" / "weights" / "policy.safetensors")
        made.append((weights, [line for line in metrics(cli.run) if line["split"] == "train"]))
    (one, lines), (two, others) = made
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-9
    for line, other in zip(lines, others, strict=True):
        assert other == pytest.approx(line, abs=1e-9)
    assert lines[2]["kl"] != 0.0 and lines[2]["kl_coef"] != lines[0]["kl_coef"]
