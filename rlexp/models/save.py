"""The trained policy in Hugging Face format."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.config.model import LoraConfig, PeftConfig
from rlexp.distributed.shards import is_sharded, whole
from rlexp.distributed.zero import is_partitioned
from rlexp.models.adapters import POLICY
from rlexp.models.loaded import LoadedModel

log = logging.getLogger(__name__)


def save_policy(loaded: LoadedModel, peft_config: PeftConfig, folder: Path, *, writes: bool = True) -> None:
    """Write model, tokenizer and generation config (EOS ids only) to a folder that AutoModelForCausalLM.from_pretrained reads.

    With LoRA: the adapter alone, or the merged model (peft.save). The live weights are not touched. An existing folder is
    replaced only when the new one is complete. Where ranks hold parts of the weights all of them call this: weights are gathered one after the
    other, and the rank that writes keeps them in its main memory.
    """
    folder = Path(folder)
    work = folder.with_name(folder.name + ".tmp")
    if not writes:
        _gathered(loaded.module, peft_config, keep=False)
        return
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
    if _adapter_alone(module, peft_config):
        module.save_pretrained(work, selected_adapters=[POLICY], state_dict=_gathered(module, peft_config, keep=True))
    elif hasattr(module, "peft_config"):
        if isinstance(peft_config, LoraConfig) and peft_config.save == "adapter":
            log.warning("peft.save=adapter: the base model has random weights that exist nowhere else, so the merged model is saved")
        merged(module).save_pretrained(work)
    elif any(is_sharded(parameter) or is_partitioned(parameter) for parameter in module.parameters()):
        _rebuilt(module, _gathered(module, peft_config, keep=True)).save_pretrained(work)
    else:
        module.save_pretrained(work)
    loaded.tokenizer.save_pretrained(work)


def _adapter_alone(module: Any, peft_config: PeftConfig) -> bool:
    """Whether the adapter is all that is saved: its base model can be found again."""
    asked = hasattr(module, "peft_config") and isinstance(peft_config, LoraConfig) and peft_config.save == "adapter"
    return asked and bool(module.get_base_model().name_or_path)


def _gathered(module: Any, peft_config: PeftConfig, *, keep: bool) -> dict[str, Tensor]:
    """The weights that are saved, whole and on the CPU, by name; {} where they are only gathered for the rank that keeps them."""
    if _adapter_alone(module, peft_config):
        return _each({name: value for name, value in module.state_dict().items() if ".lora_" in name}, keep)
    if hasattr(module, "peft_config"):
        return _merged_state(module.get_base_model(), keep)
    return _each(module.state_dict(keep_vars=True), keep)


def _each(state: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    found = {}
    for name, value in state.items():
        gathered = whole(value)
        if keep:
            found[name] = gathered.cpu()
    return found


def merged(module: Any) -> Any:
    """A new model on the CPU with W + scale * B A in place of each adapted layer; the given model stays as it is, bit for bit."""
    base = module.get_base_model()
    return _rebuilt(base, _merged_state(base, keep=True))


@torch.no_grad()
def _merged_state(base: nn.Module, keep: bool) -> dict[str, Tensor]:
    adapted = _adapted(base)
    found = {}
    for name, value in base.state_dict().items():
        if ".lora_" in name:
            continue
        plain = _plain(name)
        weight = whole(value)
        if (layer := adapted.get(plain.removesuffix(".weight"))) is not None and plain.endswith(".weight"):
            weight = weight + _update(layer).to(weight.dtype)
        if keep:
            found[plain] = weight.cpu()
    return found


def _update(layer: Any) -> Tensor:
    """scale * B A of an adapted layer."""
    up, down = layer.lora_B[POLICY].weight, layer.lora_A[POLICY].weight
    if not is_sharded(up):
        update: Tensor = layer.get_delta_weight(POLICY)
        return update
    return (whole(up) @ whole(down)) * layer.scaling[POLICY]


def _rebuilt(base: Any, state: dict[str, Tensor]) -> Any:
    """A model of the same architecture that holds these tensors."""
    with torch.device("meta"):
        fresh = type(base)(base.config)
    fresh.load_state_dict(state, assign=True)
    fresh.tie_weights()
    fresh.generation_config = base.generation_config
    return fresh


def _adapted(base: nn.Module) -> dict[str, Any]:
    from peft.tuners.lora import LoraLayer

    return {name: part for name, part in base.named_modules() if isinstance(part, LoraLayer)}


def _plain(name: str) -> str:
    """Name of a weight before the adapters were put in."""
    return name.replace(".base_layer.", ".")
