"""model=hub: what is taken from a model folder, what is refused, and the shipped model options by their architecture numbers."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from models_for_tests import tiny_model
from run_configs import composed
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from rlexp import registry
from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig, PeftConfig
from rlexp.models import fetch, hub
from rlexp.models.save import save_policy
from rlexp.models.tokenizer import character_tokenizer

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random tiny model on disk, in float32."""
    made = tmp_path_factory.mktemp("models") / "base"
    save_policy(tiny_model(dtype=torch.float32), PeftConfig(), made)
    return made


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def load(path: Path | str, seed: int = 0, **options):
    return hub.load(HubModelConfig(path=str(path), **options), seed=seed)


def rewrite(file: Path, **values) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}))


@pytest.mark.rows("GRPO-098", "GRPO-099", "GRPO-107")
def test_a_local_folder_is_loaded_as_it_is(folder):
    source = tiny_model(dtype=torch.float32)
    loaded = load(folder)
    assert torch.equal(loaded.module(IDS).logits, source.module(IDS).logits)
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in loaded.module.parameters())
    assert (loaded.eos_ids, loaded.context, loaded.label) == ((2,), 256, "base")
    assert (loaded.tokenizer.padding_side, loaded.tokenizer.pad_token_id) == ("left", 0)
    assert not loaded.module.training


@pytest.mark.rows("GRPO-099", "GRPO-100")
def test_dtype_and_attention_reach_the_model(folder):
    loaded = load(folder, dtype="bfloat16", attention="eager")
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.bfloat16}
    assert loaded.module.config._attn_implementation == "eager"
    assert load(folder).module.config._attn_implementation == "sdpa"


@pytest.mark.rows("GRPO-099")
def test_float32_is_the_default_whatever_the_folder_was_saved_in(folder, copy):
    save_file({name: value.bfloat16() for name, value in load_file(folder / "model.safetensors").items()}, copy / "model.safetensors", {"format": "pt"})
    rewrite(copy / "config.json", dtype="bfloat16")
    assert {parameter.dtype for parameter in load(copy).module.parameters()} == {torch.float32}


@pytest.mark.cases("S26", "S18")
def test_of_a_generation_config_only_the_eos_ids_are_taken(copy, tmp_path):
    rewrite(copy / "generation_config.json", temperature=0.1, top_k=1, top_p=0.5, repetition_penalty=1.3, do_sample=True, eos_token_id=[0, 5])
    loaded = load(copy)
    assert loaded.eos_ids == (0, 2, 5)
    save_policy(loaded, PeftConfig(), tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [0, 2, 5]
    assert not {"temperature", "top_k", "top_p", "repetition_penalty", "do_sample"} & set(saved)


def test_eos_ids_of_the_model_config_count_where_there_is_no_generation_config(copy):
    (copy / "generation_config.json").unlink()
    rewrite(copy / "config.json", eos_token_id=[7, 100000])
    assert load(copy).eos_ids == (2, 7)


@pytest.mark.rows("GRPO-107")
def test_pad_falls_back_to_eos(copy):
    tokenizer = character_tokenizer()
    tokenizer.pad_token = None
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(copy)
    loaded = load(copy)
    assert (loaded.tokenizer.pad_token_id, loaded.tokenizer.padding_side) == (2, "left")


def test_a_tokenizer_and_a_template_of_ones_own(folder, copy, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0]['content'] }}!")
    for file in copy.glob("tokenizer*"):
        file.unlink()
    loaded = load(copy, tokenizer=str(folder), chat_template=str(template))
    assert loaded.tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "a!"
    with pytest.raises(UserError, match=r"model\.chat_template=.*none\.jinja is no file"):
        load(folder, chat_template=str(tmp_path / "none.jinja"))


def test_random_weights_depend_on_the_seed_and_nothing_else(folder):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = load(folder, seed=3, random_weights=True).module
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    same, other = load(folder, seed=3, random_weights=True).module, load(folder, seed=4, random_weights=True).module
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, load(folder).module.lm_head.weight)


def test_loading_leaves_the_global_random_state_alone(folder):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    load(folder)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.rows("GRPO-102")
def test_dropout_is_off_in_training_unless_asked_for(copy, tmp_path):
    rewrite(copy / "config.json", attention_dropout=0.5)
    gpt2 = tmp_path / "gpt2"
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "eos_token_id": 2, "bos_token_id": 2}
    GPT2LMHeadModel(GPT2Config(vocab_size=103, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5, **sizes)).save_pretrained(gpt2)
    character_tokenizer().save_pretrained(gpt2)
    for path, context in ((copy, 256), (gpt2, 32)):
        still = load(path)
        assert still.context == context
        still.module.train()
        assert torch.equal(still.module(IDS).logits, still.module(IDS).logits)
        noisy = load(path, disable_dropout=False).module.train()
        assert not torch.equal(noisy(IDS).logits, noisy(IDS).logits)


@pytest.mark.rows("GRPO-098", "GRPO-268")
def test_what_is_no_causal_language_model_is_refused(tmp_path):
    small = {"vocab_size": 103, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    models = {
        "BertForMaskedLM": BertForMaskedLM(BertConfig(**small)),
        "Qwen2ForSequenceClassification": Qwen2ForSequenceClassification(Qwen2Config(**small, num_key_value_heads=2)),
    }
    for name, module in models.items():
        module.save_pretrained(tmp_path / name)
        with pytest.raises(UserError, match=rf"model\.path=.* is no causal language model but {name}"):
            load(tmp_path / name)


def test_folders_that_cannot_be_used_are_explained(folder, copy, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"model\.path=.*empty cannot be read as a model"):
        load(tmp_path / "empty")
    with pytest.raises(UserError, match=r"model\.revision=main has no meaning for the local folder"):
        load(folder, revision="main")
    with pytest.raises(UserError, match=r"model\.path=no/such/folder is neither a local folder nor a valid hub id"):
        load("no/such/folder")
    weights = load_file(copy / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"the weights lack lm_head\.weight"):
        load(copy)
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no \*\.safetensors weights"):
        load(copy)
    rewrite(copy / "config.json", vocab_size=50)
    with pytest.raises(UserError, match=r"model\.tokenizer: it has 103 tokens, the model only 50 embeddings"):
        load(copy, random_weights=True)
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"model\.tokenizer: .* has no tokenizer that can be loaded"):
        load(copy)
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=r"model\.tokenizer: .* has no tokenizer files"):
        load(copy)


@pytest.mark.rows("GRPO-101")
def test_code_of_a_model_is_not_run_unless_trusted(copy):
    rewrite(
        copy / "config.json", model_type="homemade", architectures=["Homemade"], auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Homemade"}
    )
    (copy / "code.py").write_text(
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
        "class Config(Qwen3Config):\n    model_type = 'homemade'\n"
        "class Homemade(Qwen3ForCausalLM):\n    config_class = Config\n"
    )
    with pytest.raises(UserError, match=r"set model\.trust_remote_code=true if you trust it"):
        load(copy)
    assert type(load(copy, trust_remote_code=True).module).__name__ == "Homemade"


def test_a_hub_that_does_not_answer_is_one_quick_error(monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(fetch, "REQUEST_SECONDS", 0.5)
        started = time.monotonic()
        with pytest.raises(UserError, match=r"model\.path=nobody/nothing is no local folder and the hub cannot be reached .*: give a local folder"):
            load("nobody/nothing")
        assert time.monotonic() - started < 20
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"the hub cannot be reached"):
        load("nobody/nothing")


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
OPTIONS = {
    "qwen3_0_6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
    },
    "qwen2_5_0_5b_instruct": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
    },
    "llama3_2_1b_instruct": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"},
        "rms_norm_eps": 1e-5,
    },
}
"""config.json of the hub models; depth and vocabulary are cut in the test"""


@pytest.mark.rows("GRPO-098")
@pytest.mark.parametrize("option", OPTIONS)
def test_a_shipped_option_builds_from_its_architecture_numbers_and_learns(option, tmp_path):
    numbers = {**OPTIONS[option], "num_hidden_layers": 1, "vocab_size": 103, "tie_word_embeddings": True, "eos_token_id": 2, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(numbers))
    character_tokenizer().save_pretrained(tmp_path)
    config = composed(f"model={option}", f"model.path={tmp_path}", "model.random_weights=true").model
    loaded = registry.MODELS.load(config.name)(config, seed=0)
    module = loaded.module
    assert module.lm_head.weight is module.model.embed_tokens.weight
    attention = module.model.layers[0].self_attn
    head = OPTIONS[option].get("head_dim", 64)
    assert attention.q_proj.weight.shape == (OPTIONS[option]["num_attention_heads"] * head, OPTIONS[option]["hidden_size"])
    assert attention.k_proj.weight.shape == (OPTIONS[option]["num_key_value_heads"] * head, OPTIONS[option]["hidden_size"])
    assert (attention.q_proj.bias is not None) == (option == "qwen2_5_0_5b_instruct")
    frequencies = module.model.rotary_emb.inv_freq
    assert frequencies[1].item() == pytest.approx(OPTIONS[option]["rope_theta"] ** (-2 / head), rel=1e-5)
    if option == "llama3_2_1b_instruct":
        assert frequencies[-1].item() == pytest.approx(500000.0 ** (-62 / 64) / 32, rel=1e-5)
    assert loaded.context == OPTIONS[option]["max_position_embeddings"]
    logp = module(IDS).logits[0, :-1].log_softmax(-1)
    loss = -logp.gather(1, IDS[0, 1:, None]).mean()
    loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.1 / module.config.hidden_size * parameter.grad.sign()
    after = -module(IDS).logits[0, :-1].log_softmax(-1).gather(1, IDS[0, 1:, None]).mean()
    assert after < loss


def test_the_saved_folder_is_plain_hugging_face(folder, tmp_path):
    source = load(folder)
    save_policy(source, PeftConfig(), tmp_path / "model")
    save_policy(source, PeftConfig(), tmp_path / "model")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(again(IDS).logits, source.module(IDS).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("1+2").input_ids == source.tokenizer("1+2").input_ids
    assert {file.suffix for file in (tmp_path / "model").iterdir()} <= {".json", ".safetensors", ".jinja"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
