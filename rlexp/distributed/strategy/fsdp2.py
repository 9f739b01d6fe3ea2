"""Parts of each weight, its gradient and its optimizer state in each process (torch fully_shard, FSDP2).

A layer is whole while it computes; the embeddings, the head and whatever else is outside of layers are one group that is whole from the start of a
training forward to the end of its backward. Weights that are trained are kept in at least float32; under `trainer.precision=bf16` layers travel and
compute in bfloat16, the rest travels as it is, and gradients are summed in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from rlexp.config.errors import UserError
from rlexp.config.strategy import FSDP2StrategyConfig, StrategyConfig
from rlexp.distributed.shards import own_part
from rlexp.distributed.skeleton import conform, fill, is_skeleton, places, skeletons
from rlexp.distributed.strategy.lockstep import Lockstep
from rlexp.distributed.strategy.ranks import RanksStrategy


class FSDP2Strategy(RanksStrategy):
    """Gradients are summed into the parts in every backward, so that no process ever holds a whole one longer than a layer takes."""

    sharded = True

    def __init__(self, config: StrategyConfig) -> None:
        super().__init__(config)
        assert isinstance(config, FSDP2StrategyConfig)
        self.config = config
        self.mesh = init_device_mesh(self.device.type, (self.collectives.world,))

    @property
    def load_device(self) -> torch.device:
        """Models are loaded on the CPU: a layer goes to its device just before it is cut."""
        return torch.device("cpu")

    def loading(self) -> contextlib.AbstractContextManager[None]:
        """Rank 0 alone reads weights; the others get them when a layer is cut, so that one whole copy exists, however many ranks there are."""
        return contextlib.nullcontext() if self.collectives.rank == 0 else skeletons()

    def wrap(self, network: nn.Module) -> Callable[..., dict[str, Tensor]]:
        """The network itself, cut into parts; its parameters are DTensors from now on."""
        hollow = self._agree(network)
        if getattr(network, "autocast", None) is not None:
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        dtypes = {parameter.dtype for parameter in network.parameters() if parameter.requires_grad}
        if len(dtypes) > 1:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            raise UserError(f"strategy=fsdp2 trains weights of one dtype, and there are {names}: set model.dtype=float32, or trainer.precision=bf16")
        self._cut(network, hollow)
        return network

    def place(self, network: nn.Module) -> None:
        """Cut a network into parts, in place."""
        self._cut(network, self._agree(network))

    def _agree(self, network: nn.Module) -> bool:
        """Whether a rank has a skeleton of this network, so that all get rank 0's numbers. Skeletons then have its shapes, dtypes and ties."""
        told = self.collectives.gather_objects((is_skeleton(network), places(network) if self.collectives.rank == 0 else None))
        hollow = any(skeleton for skeleton, _ in told)
        if hollow and self.collectives.rank != 0:
            conform(network, told[0][1])
        return hollow

    def _cut(self, network: nn.Module, hollow: bool) -> None:
        layers = MixedPrecisionPolicy(param_dtype=getattr(network, "autocast", None), reduce_dtype=_reduced_in(network))
        rest = MixedPrecisionPolicy(reduce_dtype=layers.reduce_dtype, cast_forward_inputs=False)
        for layer in _layers(network):
            if hollow:
                fill(layer, self.device)
            fully_shard(layer, mesh=self.mesh, reshard_after_forward=True, mp_policy=layers)
        if hollow:
            fill(network, self.device)
        fully_shard(network, mesh=self.mesh, reshard_after_forward=True, mp_policy=rest)
        for part in _parts(network):
            # the loss is a sum over the terms of all ranks; a plain sum is also the one reduction that gloo knows
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        root: Any = network
        root.set_reduce_scatter_unused_params(True)
        # the first forward decides which module is the root, and parts of the network may be called before the whole
        root.first_forward = lambda: None
        register_fsdp_forward_method(root, "first_forward")
        root.first_forward()

    @contextlib.contextmanager
    def opened(self, network: nn.Module) -> Iterator[None]:
        """What is outside of layers is whole; layers gather themselves when they are called."""
        root: Any = network
        root.set_reshard_after_forward(False, recurse=False)
        root.unshard()
        try:
            yield
        finally:
            root.set_reshard_after_forward(True, recurse=False)
            root.reshard()

    @contextlib.contextmanager
    def sampling(self, networks: Sequence[nn.Module], scorers: Sequence[nn.Module] = ()) -> Iterator[None]:
        """Whole weights of networks on every rank, or ranks in step (strategy.gather_for_generation); in step for scorers, always."""
        with contextlib.ExitStack() as stack:
            for network in networks:
                stack.enter_context(self._whole(network) if self.config.gather_for_generation else self.opened(network))
            sampled = [] if self.config.gather_for_generation else [_backbone(network) for network in networks]
            if sampled or scorers:
                stack.enter_context(Lockstep([*sampled, *scorers]))
            yield

    @contextlib.contextmanager
    def _whole(self, network: nn.Module) -> Iterator[None]:
        parts = _parts(network)
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.set_reshard_after_forward(True, recurse=False)
                part.reshard()

    @contextlib.contextmanager
    def micro_batch(self, wrapped: Any, last: bool) -> Iterator[None]:
        """The head's backward comes right after its forward, so what is outside of layers stays whole between them; the backward cuts it again."""
        wrapped.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            wrapped.set_reshard_after_forward(True, recurse=False)

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> float:
        """The norm is that of all parts together."""
        gradients = [own_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
        squared = torch.nn.utils.get_total_norm(gradients).square()
        dist.all_reduce(squared)
        norm = squared.sqrt()
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))  # as torch.nn.utils.clip_grad_norm_
        return float(norm)


def _layers(network: nn.Module) -> list[nn.Module]:
    """The decoder layers, as transformers names their classes."""
    names: set[str] = set()
    for module in network.modules():
        names.update(getattr(module, "_no_split_modules", None) or ())
    return [module for module in network.modules() if type(module).__name__ in names]


def _parts(network: nn.Module) -> list[FSDPModule]:
    return [module for module in network.modules() if isinstance(module, FSDPModule)]


def _backbone(network: Any) -> nn.Module:
    """The transformers model without its head: every generator calls it as a module, whatever it calls around it."""
    return network.causal.base_model


def _reduced_in(network: nn.Module) -> torch.dtype | None:
    """Gradients of layers that compute in less than float32 are summed in float32."""
    return torch.float32 if getattr(network, "autocast", None) is not None else None
