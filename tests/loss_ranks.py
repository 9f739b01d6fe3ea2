"""Steps of the real strategies in two processes, for many objectives, against one process with one micro-batch."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from loss_batches import micro_batches, random_batch, step
from torch import nn

from rlexp.config.strategy import DDPStrategyConfig, FSDP2StrategyConfig
from rlexp.distributed.shards import assign, whole
from rlexp.distributed.strategy.ddp import DDPStrategy
from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy
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


def worker(rank: int, port: int, path: str, runs: list[PolicyObjective], cut: bool) -> None:
    """Rank 0 writes for each objective the largest difference of a gradient from the one-process step, and the largest gradient.

    cut: under fsdp2, log-probs on one rank and entropies on the other, else under ddp.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    strategy = FSDP2Strategy(FSDP2StrategyConfig(timeout=60)) if cut else DDPStrategy(DDPStrategyConfig(timeout=60))
    table = Table(len(random_batch(0).logp))
    wrapped = strategy.wrap(table)
    found = []
    for seed, run in enumerate(runs):
        batch = random_batch(seed, fresh=seed % 4 == 0)
        table.numbers.grad = None
        with torch.no_grad():
            assign(table.numbers, torch.stack([batch.logp, batch.entropy]))
        mine = range(2 * rank, 2 * rank + 2)
        for index in mine:
            with strategy.micro_batch(wrapped, last=index == mine[-1]):
                logp, entropy = wrapped()
                strategy.backward(run(micro_batches(batch, run.config, logp, [*PARTS[0], *PARTS[1]], entropy)[index]).loss)
        one = step(run, batch, [*PARTS[0], *PARTS[1]] if run.config.name == "bnpo" else None)
        expected = torch.stack([one.grad, torch.zeros_like(one.grad) if one.entropy_grad is None else one.entropy_grad])
        found.append((float((whole(table.numbers.grad) - expected).abs().max()), float(expected.abs().max())))
    if rank == 0:
        Path(path).write_text("\n".join(f"{difference} {largest}" for difference, largest in found), encoding="utf-8")
    strategy.collectives.barrier()
    strategy.close()
