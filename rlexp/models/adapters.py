"""`peft=none` and `peft=lora`: which weights are trained, and the reference that goes with an adapter."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlexp.config.errors import UserError
from rlexp.config.model import LoraConfig, PeftConfig
from rlexp.distributed.shards import Rows, assign
from rlexp.models.loaded import LoadedModel
from rlexp.records import keys

if TYPE_CHECKING:
    from peft import PeftModel

POLICY, REFERENCE = "default", "reference"
"""names of the trained adapter, and of the frozen copy of an adapter that training started from"""
ALL_LINEAR = "all-linear"


def no_adapter(loaded: LoadedModel, config: PeftConfig, *, seed: int) -> LoadedModel:
    """All weights are trained."""
    loaded.module.requires_grad_(True)
    return loaded


def lora(loaded: LoadedModel, config: LoraConfig, *, seed: int) -> LoadedModel:
    """Low-rank adapters on the linear layers (arXiv 2106.09685); the base weights are frozen.

    A fresh adapter is drawn from `seed` and starts without effect (B = 0). With `config.path` training continues from a trained
    adapter, whose rank, scale and targets are its own, and a frozen copy of it becomes the reference. Raises UserError when peft
    is missing, a target fits no layer, or an adapter would sit on the head or the embeddings.
    """
    peft = _peft()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.key(seed, "lora") % 2**63)
        if config.path is not None:
            module = _trained(peft, loaded.module, Path(config.path).expanduser(), config.path)
        else:
            targets = _targets(loaded.module, config.targets)
            settings = peft.LoraConfig(r=config.r, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=targets, task_type="CAUSAL_LM")
            module = peft.get_peft_model(loaded.module, settings, adapter_name=POLICY)
    _check_placement(module, "peft.targets" if config.path is None else "peft.path")
    return dataclasses.replace(loaded, module=module.eval())


def reference_adapter(loaded: LoadedModel) -> Callable[[], contextlib.AbstractContextManager[None]] | None:
    """A context in which the network is its own reference: the first state of the adapter if it had one, else the bare base.

    None without an adapter. Enter it around a no-grad forward; which weights are trained is the same afterwards.
    """
    module: Any = loaded.module
    if not hasattr(module, "peft_config"):
        return None
    return lambda: _as_reference(module)


@contextlib.contextmanager
def _as_reference(module: PeftModel) -> Iterator[None]:
    """Its frozen first adapter, or the bare base."""
    if REFERENCE in module.peft_config:
        with as_adapter(module, REFERENCE):
            yield
        return
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        with module.disable_adapter():
            yield
    finally:
        for parameter, trained in flags:
            parameter.requires_grad_(trained)


@contextlib.contextmanager
def as_adapter(module: Any, name: str) -> Iterator[None]:
    """The network with another of its adapters. Switching changes requires_grad of their weights, so the flags are put back afterwards."""
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        module.set_adapter(name)
        yield
    finally:
        module.set_adapter(POLICY)
        for parameter, trained in flags:
            parameter.requires_grad_(trained)


def freeze_reference(module: Any) -> None:
    """Make the policy's adapter, as it is now, the reference: a frozen copy of it in place of the bare base or of an earlier copy."""
    set_adapter_weights(module, REFERENCE, adapter_weights(module))


def reference_weights(module: Any) -> dict[str, Tensor]:
    """The weights of the reference's adapter; {} when the reference is the bare base."""
    return adapter_weights(module, REFERENCE)


def set_reference(module: Any, weights: Mapping[str, Tensor | Rows]) -> None:
    """Give the reference an adapter with these weights (of `reference_weights`). What is trained stays as it is."""
    set_adapter_weights(module, REFERENCE, weights)


@torch.no_grad()
def set_adapter_weights(module: Any, adapter: str, weights: Mapping[str, Tensor | Rows]) -> None:
    """Give the frozen adapter of this name these weights (of `adapter_weights`); made like the policy's if it is not there yet."""
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    if adapter not in module.peft_config:
        with torch.random.fork_rng(devices=[]):
            module.add_adapter(adapter, copy.deepcopy(module.peft_config[POLICY]))
        module.set_adapter(POLICY)
    for name, parameter in adapter_weights(module, adapter).items():
        assign(parameter, weights[name])
        parameter.requires_grad_(False)
    for parameter, trained in flags:
        parameter.requires_grad_(trained)


def adapter_weights(module: Any, adapter: str = POLICY) -> dict[str, Tensor]:
    """The weights of one adapter, by their names without the adapter's."""
    return {name.replace(f".{adapter}.", "."): parameter for name, parameter in module.named_parameters() if "lora_" in name and f".{adapter}." in name}


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise UserError("peft=lora needs the peft package: pip install 'rlexp[peft]'") from error
    return peft


def _trained(peft: Any, base: nn.Module, folder: Path, path: str) -> PeftModel:
    if not (folder / "adapter_config.json").is_file() or not (folder / "adapter_model.safetensors").is_file():
        raise UserError(f"peft.path={path} is no folder with a LoRA adapter (adapter_config.json and adapter_model.safetensors)")
    settings = peft.PeftConfig.from_pretrained(str(folder))
    if settings.peft_type != peft.PeftType.LORA or settings.modules_to_save:
        what = f"a {settings.peft_type} adapter, modules_to_save: {settings.modules_to_save}"
        raise UserError(f"peft.path={path} holds {what}; only plain LoRA adapters can be trained further")
    try:
        module = peft.PeftModel.from_pretrained(base, str(folder), adapter_name=POLICY, is_trainable=True)
        module.load_adapter(str(folder), adapter_name=REFERENCE, is_trainable=False)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"peft.path={path} does not fit the model ({str(error).splitlines()[0]}): give the adapter of this model") from error
    module.set_adapter(POLICY)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(f".{POLICY}." in name and "lora_" in name)
    return module


def _targets(module: nn.Module, targets: list[str]) -> str | list[str]:
    """The targets as peft takes them, each checked to fit at least one layer."""
    if list(targets) == [ALL_LINEAR]:
        return ALL_LINEAR
    names = [name for name, part in module.named_modules() if name and not list(part.children())]
    unknown = [target for target in targets if not any(name == target or name.endswith(f".{target}") for name in names)]
    if unknown or not targets:
        known = sorted({name.rpartition(".")[2] for name, part in module.named_modules() if isinstance(part, nn.Linear)})
        raise UserError(f"peft.targets: {', '.join(unknown) or 'the list is empty'} fits no layer; use {ALL_LINEAR} alone, or some of {', '.join(known)}")
    return list(targets)


def _check_placement(module: PeftModel, key: str) -> None:
    from peft.tuners.tuners_utils import BaseTunerLayer

    base: Any = module.get_base_model()
    for part, what in ((base.get_output_embeddings(), "the head (lm_head)"), (base.get_input_embeddings(), "the embeddings")):
        if isinstance(part, BaseTunerLayer):
            raise UserError(f"{key}: an adapter on {what} cannot be trained here: leave that layer out")
