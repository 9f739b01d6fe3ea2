"""Random tiny models that build in milliseconds, for the tests of every room: `from models_for_tests import tiny_model`."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rlexp.models.float64 import use_float64_norms
from rlexp.models.loaded import LoadedModel
from rlexp.models.tokenizer import character_tokenizer

FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "olmoe": (OlmoeConfig, OlmoeForCausalLM, {"num_experts": 4, "num_experts_per_tok": 1}),
}
"""name -> config, model, and what its experts need; the last three are mixtures of four"""


def tiny_model(
    vocab: int | None = None,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 2,
    tied: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    eos_ids: tuple[int, ...] | None = None,
    kind: str = "qwen3",
    context: int = 256,
    attention: str = "sdpa",
    spread: float = 1.0,
) -> LoadedModel:
    """A random causal LM with the character tokenizer; the global random state is left as it was.

    vocab: None takes the tokenizer's ids. eos_ids: None takes the tokenizer's <|im_end|>. spread: factor on all matrices,
    above 1 makes the next-token distribution peaked. The module is in eval mode.
    """
    tokenizer = character_tokenizer(context)
    config_class, model_class, experts = FAMILIES[kind]
    config = config_class(
        vocab_size=vocab or len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=hidden // heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation=attention,
        **experts,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model_class(config).to(dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, spread * 0.08)
    if dtype == torch.float64:
        use_float64_norms(module)
    return LoadedModel(module.eval(), tokenizer, eos_ids if eos_ids is not None else (tokenizer.eos_token_id,), context, f"tiny-{kind}")


@torch.no_grad()
def four_tokens(loaded: LoadedModel) -> None:
    """Make the next token 0, 1, 2 or 3 with probabilities .5, .3, .15 and .05, whatever the prompt. The head must not be tied."""
    for name, parameter in loaded.module.named_parameters():
        parameter.fill_(1.0 if "norm" in name or "embed" in name else 0.0)
    head = loaded.module.lm_head.weight
    head[:] = -60.0 / head.shape[1]
    for token, probability in enumerate((0.5, 0.3, 0.15, 0.05)):
        head[token] = math.log(probability) / head.shape[1]


def classifier_folder(path: Path, layers: int = 1) -> Path:
    """Save a random reward model of one label with the character tokenizer there."""
    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=1, head_dim=8
    )
    config.num_labels, config.pad_token_id = 1, tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForSequenceClassification(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
