"""A model without its weights: architecture, tokenizer, and shapes. Of a hub model only config.json is read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig, LoraConfig, ModelConfig, SmolLM2ModelConfig, TinyModelConfig
from rlexp.config.run import RunConfig
from rlexp.models import hub, smollm2, tiny
from rlexp.models.loaded import LoadedModel
from rlexp.models.prepare import prepared
from rlexp.models.tokenizer import character_tokenizer


def architecture_of(config: ModelConfig) -> PretrainedConfig:
    """The sizes of a model option. Raises UserError for a model whose option says nothing about them (one of a plugin)."""
    if isinstance(config, TinyModelConfig):
        return tiny.architecture(config, character_tokenizer(tiny.CONTEXT))
    if isinstance(config, SmolLM2ModelConfig):
        return smollm2.architecture()
    if isinstance(config, HubModelConfig):
        return hub.architecture(config)
    raise UserError(f"model={config.name}: its sizes are not known before it is loaded; save it to a folder and plan with model=hub model.path=FOLDER")


def tokenizer_of(config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer where it is at hand: made by rlexp, in the cache, or in a local folder. None: it would have to be fetched first."""
    if isinstance(config, TinyModelConfig):
        return character_tokenizer(tiny.CONTEXT)
    if isinstance(config, SmolLM2ModelConfig):
        folder = smollm2.converted_folder()
        return hub.tokenizer_in(folder, config.chat_template) if folder.is_dir() else None
    if isinstance(config, HubModelConfig):
        folder = Path(config.tokenizer or config.path).expanduser()
        return hub.tokenizer_in(folder, config.chat_template) if hub.has_tokenizer(folder) else None
    return None


def skeleton(config: RunConfig, architecture: PretrainedConfig) -> LoadedModel:
    """The policy as it is trained, with its adapter and recomputation. Call it under a FakeTensorMode: else it has random weights.

    Its tokenizer is None: nothing is sampled from it.
    """
    attention = config.model.attention if config.model.attention in ("sdpa", "eager") else None
    trusted = isinstance(config.model, HubModelConfig) and config.model.trust_remote_code
    options: dict[str, Any] = {"dtype": getattr(torch, config.model.dtype), "attn_implementation": attention, "trust_remote_code": trusted}
    module = AutoModelForCausalLM.from_config(architecture, **options)
    if config.model.disable_dropout:
        hub.disable_dropout(module)
    loaded = LoadedModel(module.eval(), None, (), hub.context_of(architecture), config.model.name)  # type: ignore[arg-type]
    if isinstance(config.peft, LoraConfig) and config.peft.path is not None:
        config = dataclasses.replace(config, peft=_like(config.peft))
    with not_moved():
        return prepared(loaded, config, torch.device("cpu"))


@contextlib.contextmanager
def not_moved() -> Iterator[None]:
    """peft moves each adapter to where its layer is. It is there already, and parameters that are fake tensors cannot be moved."""
    original = nn.Module.to
    nn.Module.to = lambda module, *args, **kwargs: module  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.to = original  # type: ignore[method-assign]


def _like(config: LoraConfig) -> LoraConfig:
    """A fresh adapter with the sizes of a trained one."""
    import peft

    assert config.path is not None
    folder = Path(config.path).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise UserError(f"peft.path={config.path} is no folder with a LoRA adapter (adapter_config.json and adapter_model.safetensors)")
    saved: Any = peft.PeftConfig.from_pretrained(str(folder))
    targets = [saved.target_modules] if isinstance(saved.target_modules, str) else sorted(saved.target_modules)
    return dataclasses.replace(config, path=None, r=saved.r, alpha=saved.lora_alpha, targets=targets)
