"""What a sync sends and in which order, without an engine: the one here writes down what it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlexp.config.errors import UserError
from rlexp.config.model import LoraConfig
from rlexp.config.vllm import VLLMGenerationConfig
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.vllm.generator import VLLMGenerator, engine_dtype
from rlexp.generation.vllm.memory import Need, need_of
from rlexp.generation.vllm_server.generator import VLLMServerGenerator
from rlexp.generation.weight_sync import fingerprint, probe
from rlexp.generation.weight_sync.base import Score, SyncError, TrainerSide
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.generation.weight_sync.tensors import PolicyTensors
from rlexp.models.adapters import lora
from rlexp.models.loaded import LoadedModel
from rlexp.models.save import merged


class RecordingEngine:
    """Writes down what it is told, and says that it computes what the trainer computes."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.calls, self.loads = loaded, [], []
        self.stamp = -1

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.loads.append([name for name, _ in tensors])
        self.calls.append("load")

    def refresh_tied_head(self) -> None:
        self.calls.append("tied head")

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True

    def wake(self, tags: list[str]) -> None:
        self.calls.append(f"wake {'+'.join(tags)}")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def set_version(self, version: int) -> None:
        self.calls.append(f"version {version}")
        self.stamp = version

    def version(self) -> int:
        return self.stamp

    def fingerprints(self) -> dict[str, fingerprint.Fingerprint]:
        return {}


def recorded(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[RecordingEngine, WeightSync]:
    """A weight sync to a recording engine, whose probes succeed and are written down too."""
    engine: Any = RecordingEngine(loaded)
    config = VLLMGenerationConfig(**options)
    generator = VLLMGenerator(config, policies={"policy": loaded}, trainer=TrainerSide(torch.float32), engines={"policy": engine})

    def score(policy: str, ids: list[np.ndarray], top_k: int | None = None) -> list[Score]:
        engine.calls.append("probe")
        return [Score(probe.trainer_logprobs(loaded, text, None)) for text in ids]

    monkeypatch.setattr(generator, "score", score)
    return engine, WeightSync(config, generator, {"policy": loaded})


SYNC = ["load", "tied head", "reset"]


def test_the_order_of_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sync = recorded(tiny_model(dtype=torch.float32), monkeypatch, verify_sync="always")
    sync.announce(7)
    sync.bring()
    assert engine.calls == [*SYNC, "version 7", "probe"] and sync.generator.version == 7
    sync.bring()
    assert len(engine.calls) == 5  # nothing has changed
    sync.announce(8)
    sync.announce(9)
    sync.bring()
    assert engine.calls[5:] == [*SYNC, "version 9", "probe"]  # two steps on one batch, one sync


@pytest.mark.rows("GRPO-193")
def test_a_light_sleep_keeps_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sync = recorded(tiny_model(dtype=torch.float32), monkeypatch, verify_sync="always", sleep_level=1)
    sync.bring()
    sync.rest()
    sync.bring()  # an evaluation at the same version
    sync.rest()
    assert engine.calls == [*SYNC, "version 0", "probe", "sleep 1", "wake weights+kv_cache", "sleep 1"]
    sync.announce(1)
    sync.bring()
    assert engine.calls[8:] == ["wake weights", "load", "tied head", "wake kv_cache", "reset", "version 1", "probe"]


@pytest.mark.rows("GRPO-193")
def test_after_a_deep_sleep_everything_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = lora(tiny_model(dtype=torch.float32), LoraConfig(r=2), seed=0)
    engine, sync = recorded(loaded, monkeypatch, verify_sync="first", sleep_level=2)
    for version in (0, 0, 1):
        if version:
            sync.announce(version)
        sync.bring()
        sync.rest()
    everything = sync.tensors["policy"].names()
    assert engine.loads == [everything] * 3
    wake = ["wake weights", "load", "tied head", "wake kv_cache", "reset"]
    assert engine.calls == [*SYNC, "version 0", "probe", "sleep 2", *wake, "version 0", "probe", "sleep 2", *wake, "version 1", "probe", "sleep 2"]


def test_the_cpu_engine_does_not_sleep() -> None:
    with pytest.raises(UserError, match=r"generation\.sleep_level=2 needs a GPU: vLLM's CPU engine cannot give its memory back; set generation\.sleep_level=0"):
        VLLMGenerator(VLLMGenerationConfig(sleep_level=2), policies={"policy": tiny_model(dtype=torch.float32)}, trainer=TrainerSide(torch.float32))


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral", "olmoe"])
def test_the_cpu_engine_takes_no_mixture_of_experts(kind: str) -> None:
    loaded = tiny_model(dtype=torch.float32, kind=kind)
    with pytest.raises(UserError, match=rf"generation=vllm on a CPU cannot be sent the weights of a mixture of experts \({kind}\).*set generation=native"):
        VLLMGenerator(VLLMGenerationConfig(), policies={"policy": loaded}, trainer=TrainerSide(torch.float32))
    with pytest.raises(UserError, match="generation=vllm_server on a CPU cannot be sent"):
        VLLMServerGenerator(VLLMServerGenerationConfig(launch=True), policies={"policy": loaded}, trainer=TrainerSide(torch.float32))


@pytest.mark.rows("GRPO-195")
@pytest.mark.parametrize("tied", [True, False])
def test_merged_weights(tied: bool) -> None:
    loaded = lora(tiny_model(dtype=torch.float32, tied=tied), LoraConfig(r=3, alpha=6, targets=["q_proj", "down_proj"]), seed=0)
    with torch.no_grad():
        for name, parameter in loaded.module.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    sent = dict(PolicyTensors(loaded.module).stream(everything=True))
    reference = dict(merged(loaded.module).named_parameters())
    assert list(sent) == list(reference) and ("lm_head.weight" in sent) != tied
    for name, weight in reference.items():
        torch.testing.assert_close(sent[name], weight, atol=1e-6, rtol=1e-6)


def test_an_adapter_alone_is_a_fiftieth_of_the_weights() -> None:
    """The sizes of SmolLM2-135M; rank 8 on all linear layers."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49_152}
    with torch.device("meta"):
        module = LlamaForCausalLM(LlamaConfig(num_hidden_layers=30, tie_word_embeddings=True, **sizes))
        loaded = lora(LoadedModel(module, tiny_model().tokenizer, (), 512, "sizes"), LoraConfig(r=8), seed=0)
    tensors = PolicyTensors(loaded.module)
    everything = sum(weight.numel() for _, weight in tensors.base())
    alone = sum(weight.numel() for weight in tensors.adapter().tensors.values())
    assert everything == 134_515_008 and 0 < alone / everything <= 0.02


def test_merging_rounds_once() -> None:
    """In bfloat16: the sum is formed in float32, so it is the rounded exact sum and not a sum of rounded parts."""
    loaded = lora(tiny_model(dtype=torch.bfloat16), LoraConfig(r=3, alpha=6, targets=["q_proj"]), seed=0)
    layer = loaded.module.get_base_model().model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_()
    exact = layer.base_layer.weight.double() + 2.0 * layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
    sent = dict(PolicyTensors(loaded.module).stream(everything=False))["model.layers.0.self_attn.q_proj.weight"]
    assert sent.dtype == torch.bfloat16
    assert (sent.double() - exact).abs().max() <= (exact.to(torch.bfloat16).double() - exact).abs().max() + 1e-6


def test_a_decoder_layer_with_a_trained_weight_is_sent_whole() -> None:
    """Engines fuse q, k and v, and gate and up: a part of a fused matrix alone cannot be loaded."""
    loaded = tiny_model(dtype=torch.float32)
    loaded.module.requires_grad_(False)
    loaded.module.model.layers[1].self_attn.k_proj.weight.requires_grad_(True)
    loaded.module.model.norm.weight.requires_grad_(True)
    tensors = PolicyTensors(loaded.module)
    assert {name for name, _ in tensors.stream(everything=False)} == {"model.norm.weight"} | {n for n in tensors.names() if n.startswith("model.layers.1.")}


def test_an_adapter_that_is_no_plain_one_is_refused() -> None:
    from peft import LoraConfig as PeftLora
    from peft import get_peft_model

    module = get_peft_model(tiny_model(dtype=torch.float32).module, PeftLora(r=2, target_modules=["q_proj"], use_dora=True))
    with pytest.raises(UserError, match="no plain LoRA"):
        PolicyTensors(module)


def test_nothing_is_computed_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed a layer at a time: no second copy of the model is ever held."""
    tensors = PolicyTensors(lora(tiny_model(dtype=torch.float32), LoraConfig(r=2), seed=0).module)
    made = []
    merge = tensors._merged
    monkeypatch.setattr(tensors, "_merged", lambda name, weight: made.append(name) or merge(name, weight))
    stream = tensors.stream(everything=True)
    assert made == []
    next(stream)
    assert len(made) <= 2  # the embeddings, and a look at what comes next


def test_experts_go_under_the_names_of_checkpoints() -> None:
    """transformers holds all experts of a layer in one tensor; engines know them one by one."""
    loaded = tiny_model(dtype=torch.float32, kind="qwen3_moe")
    sent = dict(PolicyTensors(loaded.module).stream(everything=True))
    experts = loaded.module.model.layers[1].mlp.experts
    both = torch.cat([sent["model.layers.1.mlp.experts.3.gate_proj.weight"], sent["model.layers.1.mlp.experts.3.up_proj.weight"]])
    assert torch.equal(both, experts.gate_up_proj[3]) and torch.equal(sent["model.layers.1.mlp.experts.0.down_proj.weight"], experts.down_proj[0])
    assert not any(name.endswith("gate_up_proj") for name in sent)


def test_a_probe_that_differs_stops_the_run_and_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model(dtype=torch.float32)
    _, sync = recorded(loaded, monkeypatch)
    score = sync.generator.score

    def off(policy: str, ids: list[np.ndarray], top_k: int | None = None) -> list[Score]:
        found = score(policy, ids)[0]
        return [dataclasses.replace(found, logprobs=found.logprobs + 0.25)]

    monkeypatch.setattr(sync.generator, "score", off)
    with pytest.raises(SyncError, match=r"differ from the trainer's by 0\.25, and 0\.0001 is allowed \(generation\.sync_tolerance\)"):
        sync.bring()
    monkeypatch.setattr(sync.generator, "score", lambda *_: [Score(np.full(47, np.nan, np.float32))])
    with pytest.raises(SyncError, match="by inf"):
        sync.bring()
    assert sync.stale  # nothing counts as sent


def test_fingerprints_tell_tensors_apart() -> None:
    weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    mine = fingerprint.of(weight)
    assert fingerprint.distance(mine, fingerprint.of(weight.clone())) == 0
    swapped, moved = weight[[1, 0, 2, 3, 4, 5]], weight.clone()
    moved[2, 3] += 1e-2
    columns = weight[:, [1, 0, 2, 3, 4]]
    assert fingerprint.distance(mine, fingerprint.of(columns)) > 1e-2 and fingerprint.distance(mine, fingerprint.of(moved)) > 1e-4
    assert fingerprint.distance(mine, fingerprint.of(swapped)) < 1e-6  # the order of rows is not told apart: an engine may pad or cut them


@pytest.mark.rows("GRPO-199", "GRPO-197")
def test_the_memory_an_engine_needs() -> None:
    """Qwen3-0.6B in bfloat16 by hand: 0.6e9 parameters of 2 bytes; 28 layers x 8 heads x 128 x 2 (keys, values) x 2 bytes = 114,688 bytes a token."""
    need = Need(weights=1_200_000_000, cache_token=2 * 28 * 8 * 128 * 2)
    assert need.cache_token == 114_688
    assert need.share(context=1024, total=80 * 10**9) == pytest.approx((1.2e9 + 64 * 1024 * 114_688) / 80e9 + 0.05)
    assert need.share(context=10**6, total=10**9) == 0.95
    loaded = tiny_model(dtype=torch.float32, hidden=32, layers=2, heads=2)
    found = need_of(loaded.module, torch.bfloat16)
    assert found.weights == 2 * sum(parameter.numel() for parameter in loaded.module.parameters()) and found.cache_token == 2 * 2 * 1 * 16 * 2
    assert VLLMGenerationConfig().gpu_memory_utilization == 0.3


@pytest.mark.rows("ASYNC-222")
def test_dtypes(caplog: pytest.LogCaptureFixture) -> None:
    assert engine_dtype("auto", torch.bfloat16) == torch.bfloat16 and engine_dtype("auto", torch.float64) == torch.float32
    assert not caplog.records
    assert engine_dtype("bfloat16", torch.float32) == torch.bfloat16
    assert "generation.dtype=bfloat16, and the trainer computes in float32" in caplog.text
