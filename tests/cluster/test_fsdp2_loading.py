"""strategy=fsdp2 reads weights once: the other ranks make the model without numbers and get theirs from rank 0, a layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cluster.test_fsdp2_runs import BASE, difference
from cluster.world import in_worlds, run_of
from models_for_tests import tiny_model
from programs import Programs
from run_configs import default_with

from rlexp.build import build_model
from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig, LoraConfig
from rlexp.config.strategy import FSDP2StrategyConfig
from rlexp.distributed import skeleton
from rlexp.distributed.shards import is_sharded, whole
from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy
from rlexp.models import hub
from rlexp.models.network import Network

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "tied": {"tied": True}, "untied": {}, "experts": {"kind": "qwen3_moe"}, "adapter": {}, "kept wide": {}}
"""untied: the config ties the head and the file has another one. kept wide: rank 0's library keeps some frozen weights in float32"""


def saved_model(folder: Path, **options: Any) -> Path:
    """A random model as it comes from the hub."""
    loaded = tiny_model(hidden=16, spread=3.0, dtype=torch.float32, **options)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


class Counting:
    """`skeleton.fill`, and how many weights of a network a rank holds whole after each call."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.whole: list[int] = []

    def __call__(self, module: torch.nn.Module, device: torch.device) -> None:
        skeleton.fill(module, device)
        there = [value for value in self.network.parameters() if not is_sharded(value) and value.device != skeleton.META]
        self.whole.append(sum(value.numel() for value in there))


def on_ranks(folder: str) -> None:
    """Rank 1 has no numbers before the model is cut, never a whole one of all layers while it is, and afterwards its rows of what rank 0 read."""
    torch.set_num_threads(1)
    strategy = FSDP2Strategy(FSDP2StrategyConfig(timeout=60))
    first = strategy.collectives.rank == 0
    for kind in KINDS:
        dtype = "bfloat16" if kind == "kept wide" else "float32"
        peft = {"peft": LoraConfig(r=2)} if kind in ("adapter", "kept wide") else {}
        config = default_with(model=HubModelConfig(path=str(Path(folder) / kind), dtype=dtype), **peft)
        plain = build_model(config, CPU)
        with strategy.loading():
            loaded = build_model(config, strategy.load_device)
        for module in [plain.module, *([loaded.module] if first else [])] if kind == "kept wide" else []:
            module.get_submodule("base_model.model.model.norm").float()
        assert skeleton.is_skeleton(loaded.module) == (not first)
        network = Network(loaded, device=CPU)
        with patch("rlexp.distributed.strategy.fsdp2.fill", Counting(network)) as counting:
            strategy.wrap(network)
        layers = [sum(value.numel() for value in layer.parameters()) for layer in plain.module.get_submodule(_layers(plain.module))]  # type: ignore[union-attr]
        assert first or counting.whole[:-1] == layers, "one layer at a time"
        assert all(map(is_sharded, network.parameters()))
        expected = plain.module.state_dict()
        for name, value in loaded.module.state_dict().items():
            assert value.dtype == expected[name].dtype and torch.equal(whole(value), expected[name]), (kind, name)
        for (name, buffer), (_, other) in zip(loaded.module.named_buffers(), plain.module.named_buffers(), strict=True):
            assert torch.equal(buffer, other), (kind, name)
        assert [value.requires_grad for value in loaded.module.parameters()] == [value.requires_grad for value in plain.module.parameters()]
        assert (network.head.weight is network.causal.get_input_embeddings().weight) == (kind == "tied")
    strategy.collectives.barrier()
    strategy.close()


def _layers(module: torch.nn.Module) -> str:
    return next(name for name, part in module.named_modules() if isinstance(part, torch.nn.ModuleList) and name.endswith("layers"))


def test_rank_0_alone_reads_weights(programs: Programs, tmp_path: Path) -> None:
    for kind, options in KINDS.items():
        saved_model(tmp_path / kind, **options)
    config = tmp_path / "untied" / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    in_worlds(programs, tmp_path / "jobs", {"world": 2, "call": "cluster.test_fsdp2_loading:on_ranks", "arguments": [str(tmp_path)]})


@pytest.mark.rows("SDPO-023", "GRPO-103")
def test_runs_whose_copies_and_other_models_come_from_rank_0_too(programs: Programs, tmp_path: Path) -> None:
    """A reference, an averaged teacher, a teacher of its own, a head in float32, weights drawn at random: as one process trains."""
    policy, teacher = saved_model(tmp_path / "policy"), saved_model(tmp_path / "teacher", seed=1)
    few = [
        *BASE,
        "trainer.tokens_per_microbatch=200",
        "model=hub",
        f"model.path={policy}",
        "model.dtype=float32",
        "trainer.max_steps=3",
        "optimizer=sgd",
        "optimizer.learning_rate=0.05",
    ]
    sdpo = ["algorithm=sdpo", "algorithm.success_reward_threshold=0.25", "algorithm.distillation_weight=0.5", "algorithm.teacher_update_rate=0.3"]
    kinds = {
        "reference": ["algorithm.beta=0.1"],
        "averaged": sdpo,
        "other": [*sdpo[:-1], "algorithm.teacher_model_kind=model", f"algorithm.teacher_path={teacher}"],
        "float32 head": ["model.cast_lm_head_to_fp32=true", "algorithm.beta=0.1"],
        "random": ["model.random_weights=true"],
        "adapter": ["peft=lora", "peft.r=2", "optimizer.learning_rate=0.5"],
        "adapter that went before": ["peft=lora", f"peft.path={tmp_path / 'adapter' / 'one' / 'model'}", "algorithm.beta=0.1"],
    }
    jobs = []
    for name, options in kinds.items():
        jobs += [run_of(tmp_path / name / "one", 1, [*few, *options]), run_of(tmp_path / name / "two", 2, [*few, *options], "fsdp2")]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    for name in kinds:
        assert difference(tmp_path / name / "one", tmp_path / name / "two") < 1e-5, name


def test_a_skeleton_misses_no_weights(tmp_path: Path) -> None:
    """Who reads them says that there are none."""
    folder = saved_model(tmp_path / "bare")
    (folder / "model.safetensors").unlink()
    config = default_with(model=HubModelConfig(path=str(folder), dtype="float32"))
    with pytest.raises(UserError, match=r"has no \*\.safetensors weights"):
        build_model(config, CPU)
    with skeleton.skeletons():
        assert skeleton.is_skeleton(build_model(config, CPU).module)


def test_only_who_reads_weights_fetches_them(tmp_path: Path) -> None:
    """On a machine of ranks without numbers the files of a large model need not be."""
    folder, asked = saved_model(tmp_path), []
    with patch.object(hub, "fetch", lambda path, revision, patterns, key: asked.append(patterns) or folder):
        hub.load(HubModelConfig(path="owner/name"), seed=0)
        with skeleton.skeletons():
            made = hub.load(HubModelConfig(path="owner/name"), seed=0)
    assert "*.safetensors" in asked[0] and "*.safetensors" not in asked[1] and skeleton.is_skeleton(made.module)
