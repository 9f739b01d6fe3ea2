"""What every strategy of several processes shares: the process group and the device of a rank."""

from __future__ import annotations

import torch

from rlexp.config.strategy import RanksStrategyConfig, StrategyConfig
from rlexp.distributed.collectives import Collectives, ProcessGroup, local_rank
from rlexp.distributed.strategy.single import SingleStrategy


class RanksStrategy(SingleStrategy):
    """Processes that were started with a rank in their environment."""

    def connect(self, config: StrategyConfig) -> Collectives:
        """The process group of this run's ranks."""
        assert isinstance(config, RanksStrategyConfig)
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        return ProcessGroup(config.timeout)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")
