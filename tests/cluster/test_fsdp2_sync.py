"""Weights that two ranks hold in parts, to an engine that is a plain model of its own: sent one layer at a time, compared, and failing together."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cluster.test_zero3 import cut_all
from cluster.world import in_worlds
from models_for_tests import tiny_model
from programs import Programs
from torch import Tensor

from rlexp.config.errors import PeerError
from rlexp.config.model import LoraConfig
from rlexp.config.strategy import DeepSpeedZero3StrategyConfig, FSDP2StrategyConfig
from rlexp.config.vllm import VLLMGenerationConfig
from rlexp.distributed.shards import assign, whole
from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy
from rlexp.distributed.strategy.ranks import RanksStrategy
from rlexp.generation.weight_sync import fingerprint, probe
from rlexp.generation.weight_sync.base import RESUMED, Score, SyncError
from rlexp.generation.weight_sync.sharded import ShardedWeightSync
from rlexp.generation.weight_sync.tensors import PolicyTensors
from rlexp.models.adapters import lora
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.models.save import merged
from rlexp.rollout.exchange import on_every_rank


class PlainEngine:
    """A model that takes the weights it is sent: target and generator in one."""

    shared = True
    has_base = False
    dtype = torch.float32
    copies = 1

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.context = loaded, loaded.context
        self.weights = self
        self.stamp, self.sent, self.breaks = -1, [], ""

    def receive(self, policy: str, tensors: Iterator[tuple[str, Tensor]], version: int) -> None:
        state = self.loaded.module.state_dict()
        for name, tensor in tensors:
            assert type(tensor) is Tensor, "whole"
            self.sent.append(name)
            if name == self.breaks:
                raise SyncError("the cable was pulled", engine=RESUMED)
            state[name].copy_(tensor)
        self.stamp = version

    def score(self, policy: str, ids: list[np.ndarray], top_k: int | None = None) -> list[Score]:
        return [Score(probe.trainer_logprobs(self.loaded, text, None)) for text in ids]

    def checksums(self, policy: str) -> list[Mapping[str, fingerprint.Fingerprint]]:
        return [{name: fingerprint.of(value) for name, value in self.loaded.module.state_dict().items()}]

    def version(self) -> int:
        return self.stamp

    def set_version(self, version: int) -> None:
        pass


def sync_to(engine: Any, loaded: LoadedModel, strategy: RanksStrategy, network: Network) -> ShardedWeightSync:
    ranks = strategy.collectives
    return ShardedWeightSync(
        VLLMGenerationConfig(verify_sync="always"), engine, {"policy": loaded}, sends=ranks.rank == 0, ranks=ranks, opened=lambda name: strategy.opened(network)
    )


def strategy_named(name: str) -> RanksStrategy:
    """On a rank. ZeRO-3 as for a model whose weights are all large enough to be cut."""
    if name == "fsdp2":
        return FSDP2Strategy(FSDP2StrategyConfig(timeout=60))
    from rlexp.distributed.strategy import deepspeed_zero3

    deepspeed_zero3.engine_config = cut_all(deepspeed_zero3.engine_config)
    return deepspeed_zero3.DeepSpeedZero3Strategy(DeepSpeedZero3StrategyConfig(timeout=60))


def on_ranks(name: str, adapter: bool) -> None:
    """Send, change the weights and send again, break the line, damage a weight of the engine."""
    torch.set_num_threads(1)
    strategy = strategy_named(name)
    loaded = tiny_model(dtype=torch.float32, tied=not adapter)
    engine = PlainEngine(LoadedModel(copy.deepcopy(loaded.module), loaded.tokenizer, loaded.eos_ids, loaded.context, "engine"))
    torch.nn.init.zeros_(engine.loaded.module.model.layers[1].mlp.up_proj.weight)
    if adapter:
        loaded = lora(loaded, LoraConfig(r=2), seed=0)
        for name, parameter in loaded.module.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(parameter, 0.05)
    plain = copy.deepcopy(loaded)
    names = PolicyTensors(plain.module).names()
    network = Network(loaded)
    wrapped = strategy.wrap(network)
    strategy.optimizer(wrapped, [parameter for parameter in network.parameters() if parameter.requires_grad], lambda given: torch.optim.SGD(given, lr=1.0))
    first = strategy.collectives.rank == 0
    sync = sync_to(engine, loaded, strategy, network)
    on_every_rank(strategy.collectives, sync.bring)
    expected = (merged(plain.module) if adapter else plain.module).state_dict()
    if first:
        assert engine.sent == names and engine.stamp == 0
        assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in engine.loaded.module.state_dict().items())
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                assign(parameter, 1.01 * whole(parameter))
    sync.announce(1)
    on_every_rank(strategy.collectives, sync.bring)
    assert sync.pushed == 1 and (not first or engine.stamp == 1)
    engine.breaks = "model.layers.0.mlp.up_proj.weight"
    sync.announce(2)
    with pytest.raises(SyncError if first else (RuntimeError, PeerError), match="the cable was pulled"):
        on_every_rank(strategy.collectives, sync.bring)
    engine.breaks = ""
    engine.copy_damage = engine.receive
    engine.receive = lambda *arguments: (engine.copy_damage(*arguments), engine.loaded.module.model.layers[0].mlp.up_proj.weight.data.add_(0.5))
    with pytest.raises(SyncError, match=r"tensors that differ: model\.layers\.0\.mlp\.up_proj\.weight"):
        sync.push(3)
    strategy.collectives.barrier()
    strategy.close()


@pytest.mark.rows("ASYNC-056", "GRPO-195")
def test_parts_are_gathered_while_they_are_sent(programs: Programs, tmp_path: Path) -> None:
    kinds = (("fsdp2", False), ("fsdp2", True), ("deepspeed_zero3", False))
    jobs = [{"world": 2, "call": "cluster.test_fsdp2_sync:on_ranks", "arguments": list(kind)} for kind in kinds]
    in_worlds(programs, tmp_path / "jobs", *jobs)


def test_one_layer_at_a_time_is_asked_for() -> None:
    loaded = tiny_model(dtype=torch.float32)
    asked: list[str] = []
    tensors = PolicyTensors(loaded.module)
    base = tensors._base
    tensors._base = lambda: ((asked.append(name), (name, parameter))[1] for name, parameter in base())  # type: ignore[method-assign]
    behind = [len(asked) - number for number, _ in enumerate(tensors.stream(everything=True), 1)]
    per_layer = sum("layers.0." in name for name in tensors.names())
    assert max(behind) <= per_layer + 1 < len(tensors.names())
