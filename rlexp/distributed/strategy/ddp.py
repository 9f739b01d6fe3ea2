"""A copy of the network in each process (torch DistributedDataParallel)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rlexp.config.strategy import StrategyConfig
from rlexp.distributed.collectives import local_rank
from rlexp.distributed.strategy.ranks import RanksStrategy


class DDPStrategy(RanksStrategy):
    """Gradients of all processes are averaged by DDP during the last micro-batch of a step."""

    def __init__(self, config: StrategyConfig) -> None:
        super().__init__(config)
        self._wrapped: list[DistributedDataParallel] = []

    def wrap(self, network: nn.Module) -> Callable[..., dict[str, Tensor]]:
        """The network inside DDP; buffers are equal already and are not broadcast again."""
        with warnings.catch_warnings():  # torch prefers forward_sync_buffers, which exchanges buffers once more at the start
            warnings.simplefilter("ignore", FutureWarning)
            devices = [local_rank()] if torch.cuda.is_available() else None
        self._wrapped.append(DistributedDataParallel(network, device_ids=devices, forward_sync_buffers=False))
        return self._wrapped[-1]

    @contextlib.contextmanager
    def micro_batch(self, wrapped: Any, last: bool) -> Iterator[None]:
        """Gradients stay local until the last micro-batch of the step."""
        with contextlib.nullcontext() if last else wrapped.no_sync():
            yield

    def backward(self, loss: Tensor) -> None:
        """DDP averages over processes: the factor makes the result the sum, as in one process."""
        (loss * self.collectives.world).backward()

    def close(self) -> None:
        """End of the run. DDP's reducers go before the process group, and with them the wrapped networks cannot train any more.

        The last reference to a process group must not be a reducer's: its destructor would hold the interpreter's lock while it joins
        gloo's threads, which may be waiting for that lock to give back the tensors of the last exchange. Both then wait for ever.
        """
        for wrapped in self._wrapped:
            del wrapped.reducer, wrapped.logger
        super().close()
