"""A process group that is opened, used and closed again and again: `program.closings TIMES`."""

from __future__ import annotations

import os
import sys

import torch

from rlexp.config.strategy import DDPStrategyConfig
from rlexp.distributed.strategy.ddp import DDPStrategy
from rlexp.launch.ranks import free_port


def use_once() -> None:
    """One process, one step, one exchange, as at the end of a run."""
    strategy = DDPStrategy(DDPStrategyConfig(timeout=60))
    strategy.wrap(torch.nn.Linear(4, 4))(torch.ones(1, 4)).sum().backward()
    strategy.collectives.barrier()
    strategy.close()


if __name__ == "__main__":
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for _ in range(int(sys.argv[1])):
        use_once()
