"""One process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.config.training import StrategyConfig
from rlexp.distributed.collectives import Collectives


class SingleStrategy:
    """The network as it is."""

    def __init__(self, config: StrategyConfig) -> None:
        self.collectives = self.connect(config)

    def connect(self, config: StrategyConfig) -> Collectives:
        """The collectives of this run's processes."""
        return Collectives()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    def wrap(self, network: nn.Module) -> Callable[..., dict[str, Tensor]]:
        """What the training forward calls."""
        return network

    @contextlib.contextmanager
    def micro_batch(self, wrapped: Any, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch; last: gradients are exchanged in its backward."""
        yield

    def backward(self, loss: Tensor) -> None:
        """Add this micro-batch's gradient. The loss is a plain sum over terms with their final scale."""
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], max_norm: float | None) -> float:
        """Clip, step and clear the gradient. Returns the norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm if max_norm is not None else float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def close(self) -> None:
        """End of the run."""
        self.collectives.close()
