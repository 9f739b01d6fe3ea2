"""One process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.config.strategy import StrategyConfig
from rlexp.distributed.collectives import Collectives


class SingleStrategy:
    """The network as it is."""

    sharded = False
    """whether processes hold parts of weights: each forward is then an exchange, and every rank must run equally many in the same order"""

    def __init__(self, config: StrategyConfig) -> None:
        self.collectives = self.connect(config)

    def connect(self, config: StrategyConfig) -> Collectives:
        """The collectives of this run's processes."""
        return Collectives()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    @property
    def load_device(self) -> torch.device:
        """Where a model is put before `wrap` or `place` takes it."""
        return self.device

    def loading(self) -> contextlib.AbstractContextManager[None]:
        """Around loading models, up to `wrap` or `place`."""
        return contextlib.nullcontext()

    def wrap(self, network: nn.Module) -> Callable[..., dict[str, Tensor]]:
        """What the training forward calls. Before an optimizer is made, since parameters may become others."""
        return network

    def optimizer(self, wrapped: Any, parameters: list[nn.Parameter], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """The optimizer of a wrapped network's parameters."""
        return make(parameters)

    def place(self, network: nn.Module) -> None:
        """Spread a network that is forwarded but not trained, as the trained ones are."""

    @contextlib.contextmanager
    def opened(self, network: nn.Module) -> Iterator[None]:
        """Parts of a network can be called by themselves (its head, its backbone), not only the whole."""
        yield

    @contextlib.contextmanager
    def sampling(self, networks: Sequence[nn.Module], scorers: Sequence[nn.Module] = ()) -> Iterator[None]:
        """Around sampling from networks and scoring what was sampled with models that `place` took: ranks may run different numbers of forwards."""
        yield

    @contextlib.contextmanager
    def micro_batch(self, wrapped: Any, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch; last: gradients are exchanged in its backward."""
        yield

    def backward(self, loss: Tensor) -> None:
        """Add this micro-batch's gradient. The loss is a plain sum over terms with their final scale."""
        loss.backward()

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> float:
        """Scale the gradient so that its norm is at most max_norm. Returns the norm before."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], max_norm: float | None) -> float:
        """Clip, step and clear the gradient. Returns the norm before clipping."""
        norm = self.clip(parameters, max_norm if max_norm is not None else float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def close(self) -> None:
        """End of the run."""
        self.collectives.close()
