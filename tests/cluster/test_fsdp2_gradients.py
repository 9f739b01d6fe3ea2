"""One process, two with a copy each, two with parts of the weights: the same gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from batches import random_batch
from cluster.world import in_worlds
from loss_batches import loss_config, own_options
from programs import Programs
from step_gradients import gradients

from rlexp.algorithms.grpo import GRPO
from rlexp.config.algorithm import GRPOConfig
from rlexp.config.strategy import DDPStrategyConfig, FSDP2StrategyConfig
from rlexp.records.rollout import GenerationBatch
from rlexp.registry import LOSSES

CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "dapo with a reference": ("dapo", 0.1, {}),
    "grpo by sequence": ("grpo", 0.0, {"importance_sampling_level": "sequence"}),
    "cispo with entropy": ("cispo", 0.1, {"top_entropy_quantile": 0.4, "entropy_coef": 0.2}),
}
BUDGETS = (10_000, 25)
"""one micro-batch for each rank, with room to spare, and several of uneven sizes"""
FEW = 0
"""stands for a batch of two rollouts: a third process gets a row that fills up and counts for nothing"""


def algorithm(case: str) -> GRPO:
    name, beta, overrides = CASES[case]
    return GRPO(GRPOConfig(beta=beta), loss_config(name, **own_options(name, **overrides)), LOSSES.load(name))


def batch(tokens: int) -> GenerationBatch:
    """That of a budget."""
    return random_batch(1, groups=1, size=2) if tokens == FEW else random_batch(1)


def on_ranks(strategy: str, path: str) -> None:
    """Rank 0 of two writes the gradients and metrics of all cases."""
    from rlexp.distributed.strategy.ddp import DDPStrategy
    from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy

    torch.set_num_threads(1)
    made = DDPStrategy(DDPStrategyConfig(timeout=60)) if strategy == "ddp" else FSDP2Strategy(FSDP2StrategyConfig(timeout=60))
    found = {
        (case, tokens): gradients(algorithm(case), batch(tokens), tokens=tokens or 10_000, strategy=made, moved=0.02)
        for case in CASES
        for tokens in ((*BUDGETS, FEW) if strategy == "fsdp2" else BUDGETS[1:])
    }
    if made.collectives.rank == 0:
        torch.save(found, path)
    made.collectives.barrier()
    made.close()


@pytest.mark.rows("GRPO-010", "GRPO-011")
def test_processes_give_the_gradient_of_one(programs: Programs, tmp_path: Path) -> None:
    jobs = [
        {"world": world, "call": "cluster.test_fsdp2_gradients:on_ranks", "arguments": [strategy, str(tmp_path / f"{strategy}{world}.pt")]}
        for strategy, world in (("ddp", 2), ("fsdp2", 2), ("fsdp2", 3), ("fsdp2", 1))
    ]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    expected = {(case, few): gradients(algorithm(case), batch(FEW if few else BUDGETS[0]), moved=0.02) for case in CASES for few in (False, True)}
    assert all(whole.abs().max() > 1e-4 for (whole,), _ in expected.values())
    for job in jobs:
        for (name, tokens), ((found,), (other,)) in torch.load(job["arguments"][1], weights_only=False).items():
            (whole,), (metrics,) = expected[name, tokens == FEW]
            assert torch.allclose(found, whole, atol=1e-9, rtol=0), job
            assert other["loss"] == pytest.approx(metrics["loss"], abs=1e-9)
