"""Parts of the plan: what each key adds or takes away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models_for_tests import classifier_folder, tiny_model
from planning.plans import CPU, GPU, planned, sizes
from run_configs import composed
from transformers import AutoModelForSequenceClassification

from rlexp.build import build_algorithm
from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig, SmolLM2ModelConfig, TinyModelConfig
from rlexp.generation.batches import prompts_of
from rlexp.generation.inference import inference
from rlexp.generation.rows import Rows
from rlexp.models import smollm2
from rlexp.models.skeleton import architecture_of, tokenizer_of
from rlexp.planning import memory as memory_module
from rlexp.planning.memory import GENERATION, OPTIMIZER, UPDATE, plan_memory
from rlexp.planning.text import table_text
from rlexp.records.request import Request

MIB = 2**20
PARAMETERS = 103 * 192 * 2 + 2 * (4 * 192 * 192 + 3 * 192 * 576 + 2 * 192 + 2 * 32) + 192
"""of the tiny model: embeddings and head, two layers, last norm"""


def test_copies_are_cut_too_and_whole_while_they_are_loaded() -> None:
    """Network and reference: each rank holds its half of both; rank 0 held both whole."""
    memory = planned("strategy=fsdp2", "cluster.processes_per_node=2", "algorithm.beta=0.1")
    assert sizes(memory)["companions"] == 4 * PARAMETERS // 2
    assert memory.loaded == 2 * 4 * PARAMETERS and "rank 0 alone holds whole models" in table_text(memory)
    assert planned("algorithm.beta=0.1").loaded == 0


def test_weights_and_optimizer() -> None:
    found = sizes(planned())
    assert (found["parameters"], found["optimizer"]) == (4 * PARAMETERS, 8 * PARAMETERS)
    plain = sizes(planned("optimizer=sgd"))
    assert "optimizer" not in plain
    assert sizes(planned("optimizer=sgd", "optimizer.momentum=0.9"))["optimizer"] == 4 * PARAMETERS
    half = sizes(planned("model.dtype=bfloat16"))
    assert (half["parameters"], half["optimizer"]) == (2 * PARAMETERS, 4 * PARAMETERS)


def test_phases() -> None:
    memory = planned()
    by_name = {part.name: part.bytes for part in memory.parts}
    assert by_name["parameters"].keys() == {GENERATION, UPDATE, OPTIMIZER}
    assert by_name["key-value cache"].keys() == {GENERATION} and by_name["activations"].keys() == {UPDATE}
    assert by_name["gradients"][OPTIMIZER] == 4 * PARAMETERS >= by_name["gradients"].get(UPDATE, 0)
    assert memory.total == max(sum(part.bytes.get(phase, 0) for part in memory.parts) for phase in (GENERATION, UPDATE, OPTIMIZER))


@pytest.mark.parametrize(
    ("overrides", "bytes_"),
    [
        ((), 0),
        (("algorithm.beta=0.1",), 4 * PARAMETERS),
        (("algorithm=sdpo",), 4 * PARAMETERS),  # an average of the weights
        (("algorithm=sdpo", "algorithm.teacher_model_kind=base"), 4 * PARAMETERS),
        (("algorithm=sdpo", "algorithm.teacher_model_kind=live"), 0),
        (("algorithm=sdpo", "algorithm.distillation_weight=0"), 0),
        (("algorithm=sdpo", "algorithm.distillation_weight=0.5", "algorithm.beta=0.1"), 8 * PARAMETERS),
        (("peft=lora", "algorithm.beta=0.1"), 0),  # the base without its adapter
        (("algorithm=sdpo", "algorithm.teacher_model_kind=base", "peft=lora"), 0),
    ],
)
def test_companions(overrides: tuple[str, ...], bytes_: int) -> None:
    assert sizes(planned(*overrides)).get("companions", 0) == bytes_


def test_adapters() -> None:
    memory = planned("peft=lora", "peft.r=4", "algorithm=sdpo")
    adapter = 2 * 4 * 4 * (4 * (192 + 192) + 3 * (192 + 576))  # layers x bytes x rank x sides of each product
    assert sizes(memory)["parameters"] == 4 * PARAMETERS + adapter
    assert sizes(memory)["optimizer"] == 2 * adapter and sizes(memory)["companions"] == adapter


def test_another_teacher(tmp_path: Path) -> None:
    tiny_model(hidden=64).module.save_pretrained(tmp_path)
    other = sum(parameter.numel() for parameter in tiny_model(hidden=64).module.parameters())
    memory = planned("algorithm=sdpo", "algorithm.teacher_model_kind=model", f"algorithm.teacher_path={tmp_path}")
    assert sizes(memory)["companions"] == 4 * other


def test_reward_models(tmp_path: Path) -> None:
    """Float32, cut as the others are, and one whole copy in main memory while they are loaded."""
    module = AutoModelForSequenceClassification.from_pretrained(classifier_folder(tmp_path))
    bytes_ = 4 * sum(parameter.numel() for parameter in module.parameters())
    options = ("reward=[exact_match,model]", f"reward.terms.model.path={tmp_path}")
    assert sizes(planned(*options))["reward models"] == bytes_ and "reward models" not in sizes(planned())
    two = planned(*options, "strategy=fsdp2", "cluster.processes_per_node=2")
    assert sizes(two)["reward models"] == bytes_ // 2 and two.loaded == 4 * PARAMETERS + bytes_
    with pytest.raises(UserError, match="no reward model: it holds Qwen3ForCausalLM"):
        tiny_model().module.save_pretrained(tmp_path / "causal")
        planned(*options, f"reward.terms.model.path={tmp_path / 'causal'}")


@pytest.mark.parametrize("ranks", [2, 4])
def test_strategies(ranks: int) -> None:
    one = sizes(planned())
    copies = sizes(planned("strategy=ddp", f"cluster.processes_per_node={ranks}"))
    assert copies["gradient buckets"] == one["parameters"] == copies["parameters"]
    parts = sizes(planned("strategy=fsdp2", f"cluster.processes_per_node={ranks}"))
    for name in ("parameters", "optimizer", "gradients"):
        assert parts[name] == pytest.approx(one[name] / ranks, abs=2)
    assert "gradient buckets" not in parts and parts["gathered weights"] > 0
    assert copies["activations"] < one["activations"]  # each rank has its share of the rollouts


def test_sampling_holds_whole_weights_or_a_layer() -> None:
    options = ("strategy=fsdp2", "cluster.processes_per_node=2", "model.layers=4")
    whole, layers = (
        next(part for part in planned(*options, f"strategy.gather_for_generation={value}").parts if part.name == "gathered weights")
        for value in ("true", "false")
    )
    assert whole.bytes[GENERATION] > layers.bytes[GENERATION] == 4 * PARAMETERS


def test_the_cache_is_that_of_the_sampler() -> None:
    """Bytes of a real key-value cache while six rows are decoded."""
    loaded = tiny_model(dtype=torch.float32, layers=3)
    requests = [Request(np.arange(20) + 5, key=number, max_tokens=80) for number in range(6)]
    held = []
    with inference(loaded.module):
        rows = Rows(loaded, prompts_of(requests, loaded, distinct=True), 80)
        for step in range(79):
            rows.step(torch.full((6,), 5), step)
            held.append(sum(layer.key_buffer.nbytes + layer.value_buffer.nbytes for layer in rows.cache.layers))
    memory = planned("rollout.prompts_per_batch=1", "algorithm.num_generations=6", "rollout.max_completion_length=80", prompt_tokens=20)
    part = next(part for part in memory.parts if part.name == "key-value cache")
    assert "6 rows of 148 positions" in part.note
    config = loaded.module.config
    assert max(held) == pytest.approx(2 * 6 * 3 * config.num_key_value_heads * config.head_dim * 4 * 148, rel=0.01)


def test_waves_are_bounded() -> None:
    assert "16 rows of 84 positions" in next(part.note for part in planned("rollout.max_completion_length=8").parts if part.name == "key-value cache")
    bounded = planned("rollout.max_completion_length=8", "generation.max_wave_tokens=280")
    assert "10 rows of 84 positions" in next(part.note for part in bounded.parts if part.name == "key-value cache")


def test_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlexp.config import validate_generation, vllm_server

    for rules in (validate_generation, vllm_server):
        monkeypatch.setattr(rules, "vllm_installed", lambda: True)
    here = planned("generation=vllm", "correction=none", device=GPU)
    assert sizes(here)["vllm"] == pytest.approx(0.3 * 80 * 2**30)
    assert next(part for part in here.parts if part.name == "vllm").bytes.keys() == {GENERATION, UPDATE, OPTIMIZER}
    asleep = planned("generation=vllm", "generation.sleep_level=1", "correction=none", device=GPU)
    assert next(part for part in asleep.parts if part.name == "vllm").bytes.keys() == {GENERATION}
    assert sizes(planned("generation=vllm", "correction=none", device=CPU))["vllm"] == 4 * PARAMETERS + 2**30
    server = sizes(planned("generation=vllm_server", "correction=none"))
    assert not {"vllm", "key-value cache"} & server.keys()


def test_precision_of_the_device() -> None:
    assert "autocast copies" in sizes(planned(device=GPU)) and "autocast copies" not in sizes(planned())
    assert "autocast copies" in sizes(planned("trainer.precision=bf16"))


def test_architectures_are_told_without_the_files(tmp_path: Path) -> None:
    tiny = architecture_of(TinyModelConfig())
    assert (tiny.hidden_size, tiny.num_hidden_layers, tiny.vocab_size) == (192, 2, 103)
    tiny_model(hidden=48).module.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert architecture_of(HubModelConfig(path=str(tmp_path))).hidden_size == 48
    assert tokenizer_of(HubModelConfig(path=str(tmp_path))) is None and tokenizer_of(TinyModelConfig()) is not None
    with pytest.raises(UserError, match="no local folder"):
        architecture_of(HubModelConfig(path="nobody/nothing"))


def test_smollm2_has_134_million_weights() -> None:
    """The number that its file gives (spec of the model's authors), counted without the file."""
    small = ("rollout.prompts_per_batch=1", "algorithm.num_generations=2", "rollout.max_completion_length=2")
    config = composed("experiment=smollm2_arithmetic", "evaluation=none", *small)
    memory = plan_memory(config, build_algorithm(config), CPU, 4)
    assert sizes(memory)["parameters"] == 4 * 134_515_008
    architecture = architecture_of(SmolLM2ModelConfig())
    folder = smollm2.converted_folder()
    if folder.is_dir():  # where it has been fetched, what the file says must be the same
        saved = architecture_of(HubModelConfig(path=str(folder)))
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
            assert getattr(saved, name) == getattr(architecture, name)


def test_a_deep_network_from_two_shallow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("model.layers=12", "trainer.tokens_per_microbatch=64", "trainer.gradient_checkpointing=true")
    told = sizes(planned(*options))
    monkeypatch.setattr(memory_module, "DEEP", 100)
    whole = sizes(planned(*options))
    assert told.keys() == whole.keys()
    for name, size in whole.items():
        assert told[name] == pytest.approx(size, rel=0.1), name
