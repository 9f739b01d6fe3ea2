"""What a sync sends: the policy's weights under their Hugging Face names, merged with its adapter if it has one, or the adapter alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from rlexp.config.errors import UserError
from rlexp.distributed.shards import whole
from rlexp.generation.inference import causal_model
from rlexp.generation.weight_sync.base import Adapter, Named

POLICY = "default"
"""peft's name of the adapter that is trained, as rlexp.models.adapters has it"""
_LAYER = re.compile(r"^(.*?\.\d+)\.")
"""the decoder layer a weight belongs to"""


class PolicyTensors:
    """The tensors of one policy, read live. Nothing is copied before it is asked for, and then one decoder layer at a time. Where ranks hold parts, reading
    gathers them, so all ranks must read the same tensors in the same order.

    module: a transformers causal LM, or a peft model around one.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.causal = causal_model(module)
        self.adapted = _adapted(self.causal) if hasattr(module, "peft_config") else {}
        trained = {name for name, parameter in self._base() if parameter.requires_grad} | {f"{name}.weight" for name in self.adapted}
        touched = {_part(name) for name in trained}
        self.changing = {name for name, _ in self._base() if _part(name) in touched}
        """Names of a later sync. Engines fuse the matrices of a layer (q, k, v; gate, up) and load a fused one whole, so a decoder layer with one
        trained weight is sent whole."""

    def stream(self, everything: bool) -> Iterator[Named]:
        """Names and weights in the order of the model: everything, or what training changes.

        A merged weight is W + scale * B A, computed in float32 and rounded once to the dtype of W; W itself is not touched.
        """
        chosen = ((name, whole(parameter)) for name, parameter in self._base() if everything or name in self.changing)
        return self._converted((name, self._merged(name, weight)) for name, weight in chosen)

    def base(self) -> Iterator[Named]:
        """Names and weights of the model without its adapter."""
        return self._converted((name, whole(parameter)) for name, parameter in self._base())

    def tensor(self, name: str) -> Tensor:
        """One of them."""
        return self._merged(name, whole(dict(self._base())[name]))

    def names(self) -> list[str]:
        """Of all of them."""
        return [name for name, _ in self._base()]

    def tied_head(self) -> bool:
        """Whether the output head is the embedding matrix."""
        head, embeddings = self.causal.get_output_embeddings(), self.causal.get_input_embeddings()
        return head is not None and head.weight is embeddings.weight

    def adapter(self) -> Adapter:
        """The trained adapter alone."""
        settings = self.module.peft_config[POLICY].to_dict()
        named = self.module.named_parameters()
        return Adapter(settings, {name.replace(f".{POLICY}.", "."): whole(weight) for name, weight in named if "lora_" in name and f".{POLICY}." in name})

    def _converted(self, tensors: Iterator[Named]) -> Iterator[Named]:
        """Under the names and in the shapes of checkpoints, where transformers holds them otherwise (experts in one tensor); a layer at a time."""
        for _, layer in itertools.groupby(tensors, key=lambda item: _part(item[0])):
            yield from revert_weight_conversion(self.causal, dict(layer)).items()

    def _base(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's own weights by their names without peft; a tied head does not appear."""
        for name, parameter in self.causal.named_parameters():
            if ".lora_" not in name:
                yield name.replace(".base_layer.", "."), parameter

    @torch.no_grad()
    def _merged(self, name: str, weight: Tensor) -> Tensor:
        layer = self.adapted.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if layer is None:
            return weight
        up, down = whole(layer.lora_B[POLICY].weight), whole(layer.lora_A[POLICY].weight)
        return torch.addmm(weight.float(), up.float(), down.float(), alpha=layer.scaling[POLICY]).to(weight.dtype)


def _part(name: str) -> str:
    """The decoder layer of a weight, or the weight itself when it is of none."""
    found = _LAYER.match(name)
    return found.group(1) if found else name


def _adapted(causal: nn.Module) -> dict[str, Any]:
    """Layers with the trained adapter by name. Raises UserError for kinds whose merged weight is another formula."""
    from peft.tuners.lora import LoraLayer

    found = {}
    for name, part in causal.named_modules():
        if isinstance(part, LoraLayer) and POLICY in part.lora_A:
            if not isinstance(part.get_base_layer(), nn.Linear) or part.use_dora.get(POLICY, False) or getattr(part, "fan_in_fan_out", False):
                raise UserError(f"the adapter on {name} is no plain LoRA of a linear layer, whose weights an engine could be sent: set generation=native")
            found[name] = part
    return found
