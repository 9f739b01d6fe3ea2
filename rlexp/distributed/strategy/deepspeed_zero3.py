"""Parts of each weight, its gradient and its optimizer state in each process, by DeepSpeed (ZeRO stage 3, arXiv 1910.02054).

DeepSpeed owns the optimizer step. Everything else of the house sees what it sees elsewhere: gradients are sums, and checkpoints hold whole tensors
under the usual names.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.config.strategy import DeepSpeedZero3StrategyConfig, StrategyConfig, engine_config
from rlexp.distributed.strategy.lockstep import Lockstep
from rlexp.distributed.strategy.ranks import RanksStrategy
from rlexp.distributed.zero import is_partitioned
from rlexp.distributed.zero_optimizer import ZeroOptimizer

_OPENED = -1
"""stands for a module that uses a weight; the numbers of real ones are not negative"""


class _Engine:
    """What the training forward calls: the network, and DeepSpeed's engine around it once there is an optimizer."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.engine: Any = None

    def __call__(self, *arguments: Any) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = self.engine(*arguments)
        return columns


class DeepSpeedZero3Strategy(RanksStrategy):
    """One engine for each trained network."""

    sharded = True

    def __init__(self, config: StrategyConfig) -> None:
        super().__init__(config)
        assert isinstance(config, DeepSpeedZero3StrategyConfig)
        self.config = config
        self.deepspeed = _deepspeed()
        self.engines: dict[int, _Engine] = {}
        self.placed: list[Any] = []
        """engines of networks that are not trained: they make the hooks that gather weights"""
        self._running: _Engine | None = None

    @property
    def load_device(self) -> torch.device:
        """Models are loaded on the CPU and go to their device when they are cut."""
        return torch.device("cpu")

    def wrap(self, network: nn.Module) -> Callable[..., dict[str, Tensor]]:
        """It is cut when its optimizer is made."""
        self.engines[id(network)] = _Engine(network)
        return self.engines[id(network)]

    def place(self, network: nn.Module) -> None:
        """Cut a network into parts, in place. They stay in its own dtype: the forward says what it computes in, and a teacher that follows needs all digits."""
        settings = engine_config(self.config, bf16=False)
        self._cut(network, settings)
        engine, *_ = self.deepspeed.initialize(model=network, config=settings)
        self.placed.append(engine)
        self._show_head(network)

    def _cut(self, network: nn.Module, settings: dict[str, Any]) -> None:
        """DeepSpeed moves weights to the device when it cuts them, and leaves buffers where they are."""
        self.deepspeed.zero.Init(module=network, config_dict_or_path=settings)
        for part in network.modules():
            for name, buffer in part.named_buffers(recurse=False):
                part._buffers[name] = buffer.to(self.device)

    def _show_head(self, network: Any) -> None:
        head = getattr(network, "head", None)
        if isinstance(head, nn.Linear):  # read outside of the layer's own forward
            self.deepspeed.zero.register_external_parameter(network, head._parameters["weight"])

    @contextlib.contextmanager
    def opened(self, network: Any) -> Iterator[None]:
        """The head is whole; layers gather themselves when they are called."""
        weights = [weight for weight in network.head.parameters() if is_partitioned(weight)]
        with self.deepspeed.zero.GatheredParameters(weights):
            for weight in weights:
                weight.ds_active_sub_modules.add(_OPENED)  # so that embeddings that are tied to it do not give it back
            try:
                yield
            finally:
                for weight in weights:
                    weight.ds_active_sub_modules.discard(_OPENED)

    def optimizer(self, wrapped: Any, parameters: list[nn.Parameter], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """DeepSpeed's around the one that `make` makes of flat float32 parts."""
        network = wrapped.network
        settings = engine_config(self.config, bf16=getattr(network, "autocast", None) is not None)
        self._cut(network, settings)
        wrapped.engine, *_ = self.deepspeed.initialize(model=network, model_parameters=parameters, optimizer=make, config=settings)
        self._show_head(network)
        return ZeroOptimizer(wrapped.engine, parameters)

    @contextlib.contextmanager
    def sampling(self, networks: Sequence[nn.Module], scorers: Sequence[nn.Module] = ()) -> Iterator[None]:
        """Whole weights of networks on every rank, or ranks in step (strategy.gather_for_generation); in step for scorers, always."""
        with contextlib.ExitStack() as stack:
            sampled: list[Any] = [] if self.config.gather_for_generation else list(networks)
            if self.config.gather_for_generation:
                for network in networks:
                    stack.enter_context(self._whole(network))
            if sampled or scorers:
                models = [*(network.causal.base_model for network in sampled), *scorers]
                stack.enter_context(Lockstep(models, [*(network.causal for network in sampled), *scorers]))
            yield

    @contextlib.contextmanager
    def _whole(self, network: nn.Module) -> Iterator[None]:
        """All weights, and none of the hooks that would give them back after each layer."""
        offload = self.engines[id(network)].engine.optimizer.parameter_offload
        offload._remove_module_hooks()
        offload.forward_hooks.clear()
        offload.backward_hooks.clear()
        try:
            with self.deepspeed.zero.GatheredParameters(list(network.parameters())):
                yield
        finally:
            offload.setup_zero_stage3_hooks()

    @contextlib.contextmanager
    def micro_batch(self, wrapped: Any, last: bool) -> Iterator[None]:
        """Gradients are summed into the parts in every backward."""
        self._running = wrapped
        wrapped.engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: Tensor) -> None:
        """DeepSpeed averages over processes: the factor makes the result the sum, as in one process."""
        assert self._running is not None
        self._running.engine.backward(loss * self.collectives.world, scale_wrt_gas=False)

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], max_norm: float | None) -> float:
        """Clip and step. Returns the norm before clipping."""
        assert isinstance(optimizer, ZeroOptimizer)
        optimizer.engine.optimizer.clip_grad = max_norm or 0.0
        optimizer.engine.step()
        return float(optimizer.engine.get_global_grad_norm())


def _deepspeed() -> Any:
    import deepspeed

    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)  # calls of DeepSpeed's
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles a faster exchange for CPUs of one machine first
    return deepspeed
