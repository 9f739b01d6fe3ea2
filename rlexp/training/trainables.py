"""The trained networks of a run, spread over its processes, with their companions and optimizers."""

from __future__ import annotations

import copy
import dataclasses
import functools

import torch

from rlexp import registry
from rlexp.algorithms.base import Algorithm
from rlexp.config.run import RunConfig
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.generation.base import sampling_from
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.models.teacher import OtherModel
from rlexp.training.companions import companions_of
from rlexp.training.networks import AnyCompanion, Trainable


def autocast_dtype(config: RunConfig, device: torch.device) -> torch.dtype | None:
    """Dtype of the forward's matrix products: auto is bf16 on a GPU and the weights' own on a CPU."""
    precision = config.trainer.precision
    if precision == "bf16" or (precision == "auto" and device.type == "cuda"):
        return torch.bfloat16
    return None


def build_network(config: RunConfig, network_class: type[Network], source: LoadedModel, device: torch.device) -> Network:
    """One network of the loop around a model. device: where it will compute."""
    temperature = sampling_from(config.generation).temperature
    model, autocast = config.model, autocast_dtype(config, device)
    return network_class(
        source, temperature=temperature, chunk=config.trainer.logits_chunk, autocast=autocast, attention=model.attention, compile=model.compile, device=device
    )


def build_networks(config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, strategy: SingleStrategy) -> dict[str, Trainable]:
    """Every trained network with its optimizer and companions. The first is the loaded model, the others start as copies of it."""
    made: dict[str, Trainable] = {}
    sources = [loaded, *(dataclasses.replace(loaded, module=copy.deepcopy(loaded.module)) for _ in range(len(algorithm.networks) - 1))]
    for (name, network_class), source in zip(algorithm.networks.items(), sources, strict=True):
        network = build_network(config, network_class, source, strategy.device)
        network.own_columns = dict(algorithm.own_columns)
        companions: dict[str, AnyCompanion] = {}
        if network_class is Network:
            companions = companions_of(config, algorithm, network, source, lambda other: build_network(config, Network, other, strategy.device))
        wrapped = strategy.wrap(network)
        if network_class is Network:
            with strategy.opened(network):
                network.check()
        for companion in companions.values():
            if companion.network is not network:
                strategy.place(companion.network)
            if isinstance(companion, OtherModel):
                with strategy.opened(companion.network):
                    companion.network.check()
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        make = functools.partial(registry.OPTIMIZERS.load(config.optimizer.name), config.optimizer)
        optimizer = strategy.optimizer(wrapped, parameters, make)
        made[name] = Trainable(network.train(), wrapped, optimizer, parameters, config.optimizer.max_grad_norm, companions)
    return made
