"""The trained policy in Hugging Face format."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlexp.config.model import LoraConfig, PeftConfig
from rlexp.models.adapters import POLICY
from rlexp.models.loaded import LoadedModel

log = logging.getLogger(__name__)


def save_policy(loaded: LoadedModel, peft_config: PeftConfig, folder: Path) -> None:
    """Write model, tokenizer and generation config (EOS ids only) to a folder that AutoModelForCausalLM.from_pretrained reads.

    With LoRA: the adapter alone, or the merged model (peft.save). The live weights are not touched. An existing folder is
    replaced only when the new one is complete.
    """
    folder = Path(folder)
    work = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        _write(loaded, peft_config, work)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(loaded: LoadedModel, peft_config: PeftConfig, work: Path) -> None:
    module: Any = loaded.module
    if not hasattr(module, "peft_config"):
        module.save_pretrained(work)
    elif isinstance(peft_config, LoraConfig) and peft_config.save == "adapter" and module.get_base_model().name_or_path:
        module.save_pretrained(work, selected_adapters=[POLICY])
    else:
        if isinstance(peft_config, LoraConfig) and peft_config.save == "adapter":
            log.warning("peft.save=adapter: the base model has random weights that exist nowhere else, so the merged model is saved")
        merged(module).save_pretrained(work)
    loaded.tokenizer.save_pretrained(work)


@torch.no_grad()
def merged(module: Any) -> Any:
    """A new model on the CPU with W + scale * B A in place of each adapted layer; the given model stays as it is, bit for bit."""
    base = module.get_base_model()
    state = {_plain(name): value.detach().cpu() for name, value in base.state_dict().items() if ".lora_" not in name}
    for name, layer in _adapted(base):
        weight = layer.get_base_layer().weight
        state[f"{name}.weight"] = (weight + layer.get_delta_weight(POLICY).to(weight.dtype)).detach().cpu()
    with torch.device("meta"):
        fresh = type(base)(base.config)
    fresh.load_state_dict(state, assign=True)
    fresh.tie_weights()
    fresh.generation_config = base.generation_config
    return fresh


def _adapted(base: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(name, part) for name, part in base.named_modules() if isinstance(part, LoraLayer)]


def _plain(name: str) -> str:
    """Name of a weight before the adapters were put in."""
    return name.replace(".base_layer.", ".")
