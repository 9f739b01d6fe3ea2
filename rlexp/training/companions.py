"""The networks that are forwarded beside a trained one: its reference and its teacher."""

from __future__ import annotations

from collections.abc import Callable

from rlexp import registry
from rlexp.algorithms.base import Algorithm
from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig
from rlexp.config.run import RunConfig
from rlexp.distributed.skeleton import put
from rlexp.models.adapters import reference_adapter
from rlexp.models.companion import AdapterReference, Companion
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.models.teacher import FollowingAdapter, LiveCompanion, OtherModel
from rlexp.training.networks import AnyCompanion


def companions_of(
    config: RunConfig, algorithm: Algorithm, network: Network, source: LoadedModel, wrap: Callable[[LoadedModel], Network]
) -> dict[str, AnyCompanion]:
    """The companions that an algorithm needs, by name.

    source: the model inside the network. wrap: makes a network of another model, as the trained one was made. With an adapter a frozen
    companion is the network without it (or with its first state), one that moves a second adapter; else both are copies.
    """
    companions: dict[str, AnyCompanion] = {}
    for name in sorted(algorithm.needs.companions):
        rate, every = algorithm.companion_moves.get(name, (0.0, 1))
        switch = reference_adapter(source)
        if name in algorithm.live_companions:
            companions[name] = LiveCompanion(network)
        elif name in algorithm.companion_paths:
            companions[name] = OtherModel(_other(config, algorithm.companion_paths[name], name, network, source, wrap))
        elif switch is None:
            companions[name] = Companion(network, rate=rate, every=every)
        else:
            companions[name] = FollowingAdapter(network, name, rate=rate, every=every) if rate else AdapterReference(network, switch)
    return companions


def _other(config: RunConfig, path: str, name: str, network: Network, source: LoadedModel, wrap: Callable[[LoadedModel], Network]) -> Network:
    """Another model that reads the policy's token ids. Raises UserError when its tokens are other ones."""
    loaded = registry.MODELS.load("hub")(HubModelConfig(path=path, dtype=config.model.dtype, attention=config.model.attention), seed=config.run.seed)
    if loaded.tokenizer.get_vocab() != source.tokenizer.get_vocab():
        raise UserError(f"{name} {path}: its tokenizer is another one than the policy's, so it cannot read its samples: choose models of one family")
    put(loaded.module, network.device)
    other = wrap(loaded)
    mine, theirs = network.head.weight.shape[0], other.head.weight.shape[0]
    if mine != theirs and getattr(config.algorithm, "distillation_mode", "") != "sampled_token":
        raise UserError(
            f"{name} {path}: it has {theirs} outputs and the policy {mine} (both padded beyond the tokenizer), so distributions cannot be compared: set "
            "algorithm.distillation_mode=sampled_token, or choose a teacher of the same width"
        )
    return other
