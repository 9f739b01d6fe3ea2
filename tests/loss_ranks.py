"""Steps of the real strategies in two processes, for many objectives, against one process with one micro-batch."""

from __future__ import annotations

import os
from typing import Any

import torch
from loss_batches import Batch, micro_batches, random_batch, step
from torch import nn

from rlexp.config.strategy import DDPStrategyConfig, FSDP2StrategyConfig
from rlexp.distributed.shards import assign, whole
from rlexp.distributed.strategy.ddp import DDPStrategy
from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.losses.objective import PolicyObjective

PARTS = ([[3], [5, 0]], [[4], [2, 1]])
"""rollouts of each rank's micro-batches; 3 is empty, 4 is wholly masked"""


class Table(nn.Module):
    """A network whose outputs are its parameters: the log-prob and the entropy of each term."""

    def __init__(self, terms: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(2, terms, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        """Log-probs and entropies, [2, L]."""
        return self.numbers * 1.0


def worker(rank: int, ports: tuple[int, int], path: str, runs: list[PolicyObjective]) -> None:
    """Rank 0 writes for each objective the largest difference of a gradient from the one-process step under ddp and under fsdp2, and the largest gradient."""
    torch.set_num_threads(1)
    batches = [random_batch(seed, fresh=seed % 4 == 0) for seed in range(len(runs))]
    made = []
    for port, make in zip(ports, (lambda: DDPStrategy(DDPStrategyConfig(timeout=60)), lambda: FSDP2Strategy(FSDP2StrategyConfig(timeout=60))), strict=True):
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        strategy = make()
        table = Table(len(batches[0].logp))
        wrapped = strategy.wrap(table)
        made.append([step_of_ranks(strategy, wrapped, table, run, batch) for run, batch in zip(runs, batches, strict=True)])
        strategy.collectives.barrier()
        strategy.close()
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            for run, batch, *gradients in zip(runs, batches, *made, strict=True):
                one = expected(run, batch)
                print(float(one.abs().max()), *(float((mine - one).abs().max()) for mine in gradients), file=file)


def expected(run: PolicyObjective, batch: Batch) -> torch.Tensor:
    """The gradient of one process, [2, L]; in one micro-batch, or in those of the ranks for bnpo, whose definition they are."""
    one = step(run, batch, [*PARTS[0], *PARTS[1]] if run.config.name == "bnpo" else None)
    return torch.stack([one.grad, torch.zeros_like(one.grad) if one.entropy_grad is None else one.entropy_grad])


def step_of_ranks(strategy: SingleStrategy, wrapped: Any, table: Table, run: PolicyObjective, batch: Batch) -> torch.Tensor:
    """The gradient that both ranks come to, [2, L]."""
    table.numbers.grad = None
    with torch.no_grad():
        assign(table.numbers, torch.stack([batch.logp, batch.entropy]))
    rank = strategy.collectives.rank
    mine = range(2 * rank, 2 * rank + 2)
    for index in mine:
        with strategy.micro_batch(wrapped, last=index == mine[-1]):
            logp, entropy = wrapped()
            (inputs,) = micro_batches(batch, run.config, logp, [*PARTS[0], *PARTS[1]], entropy, only=[index])
            strategy.backward(run(inputs).loss)
    return whole(table.numbers.grad).clone()
