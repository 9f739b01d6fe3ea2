"""A model that is made on first use is whole whichever rank makes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cluster.world import in_worlds
from programs import Programs

from rlexp.config.model import TinyModelConfig
from rlexp.config.strategy import DDPStrategyConfig
from rlexp.models import cache, tiny

SMALL = TinyModelConfig(hidden_size=16, layers=1, heads=2, warm_start_accuracy=0.0)


def on_ranks() -> None:
    """Rank 1 makes it while rank 0 waits; both read it, and it is the same network."""
    from rlexp.distributed.strategy.ddp import DDPStrategy

    strategy = DDPStrategy(DDPStrategyConfig(timeout=60))
    if strategy.collectives.rank == 1:
        tiny.load(SMALL, seed=0)
    strategy.collectives.barrier()
    weights = [float(parameter.detach().double().sum()) for parameter in tiny.load(SMALL, seed=0).module.parameters()]
    assert all(found == weights for found in strategy.collectives.gather_objects(weights))
    strategy.close()


def test_another_rank_than_the_first_makes_the_model(programs: Programs, tmp_path: Path) -> None:
    in_worlds(programs, tmp_path, {"world": 2, "call": "cluster.test_first_use:on_ranks", "arguments": []}, env={"RLEXP_CACHE": str(tmp_path / "cache")})


def test_a_folder_without_a_model_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path))
    folder = cache.place("tiny", tiny.recipe_of(SMALL))
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    assert tiny.load(SMALL, seed=0).module.get_input_embeddings().weight.dtype == torch.float32
    assert (folder / "model.safetensors").is_file()
    with pytest.raises(RuntimeError, match="no model was written"):
        cache.cached("other", {}, lambda work: (work / "tokenizer.json").write_text("{}"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("other")] == [f"{cache.place('other', {}).name}.lock"]
