"""`model.attention`: which attention packed rows get, under any transformers model that takes its attention from the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rlexp.config.errors import UserError
from rlexp.models.attention.dense import dense_mask
from rlexp.models.attention.flex import Flex
from rlexp.models.attention.tiled import Tiled
from rlexp.models.attention.varlen import Varlen

REGISTERED = "rlexp_packed"
"""name under which transformers finds `attend`"""
CHECKED = {"cpu": "tiles"}
"""device type -> the attention that `auto` takes there: only what scripts/gpu_check.py or the test suite has passed on such hardware"""
NEEDS_DEVICE = {"tiles": "cpu", "flex": "cuda", "varlen": "cuda"}


class PackedRow(Protocol):
    """What an attention is made from."""

    end_T: Tensor
    depth_T: Tensor


PackedAttention = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(query [1, H, T, D], key, value [1, H or fewer, T, D], scale) -> [1, H, T, D]"""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed: PackedAttention | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: a packed row's own attention, else (sampling, plain forwards) torch's."""
    if packed is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)
    odd = [name for name in ("softcap", "s_aux", "position_bias", "sliding_window") if options.get(name) is not None]
    if odd or dropout:
        raise NotImplementedError(f"attention with {', '.join(odd) or 'dropout'}")
    if torch.is_autocast_enabled(query.device.type):  # what torch does for its own attention: norms may have returned to float32
        query, key, value = (states.to(torch.get_autocast_dtype(query.device.type)) for states in (query, key, value))
    out = _run(packed, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return out.transpose(1, 2).contiguous(), None


@torch.compiler.disable
def _run(packed: PackedAttention, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """model.compile stops here: tiles are Python, flex and varlen are compiled kernels already."""
    return packed(query, key, value, scale)


AttentionInterface.register(REGISTERED, attend)
AttentionMaskInterface.register(REGISTERED, sdpa_mask)


def _make(name: str, row: PackedRow, dtype: torch.dtype) -> PackedAttention:
    end_T, depth_T = row.end_T.cpu().numpy(), row.depth_T.cpu().numpy()
    if name == "tiles":
        return Tiled(end_T, depth_T, dtype)
    if name == "flex":
        return Flex(end_T, row.end_T.device)
    return Varlen(end_T, depth_T, row.end_T.device)


def resolve(name: str, causal: Any, device: torch.device) -> str:
    """The attention to use: `auto` becomes what is known to work on this device for this model. Puts it under the model.

    Raises UserError where an attention asked for by name cannot serve the model or the device.
    """
    wanted = CHECKED.get(device.type, "sdpa") if name == "auto" else name
    if wanted in ("sdpa", "eager"):
        return wanted
    needed = NEEDS_DEVICE[wanted]
    if needed != device.type:
        raise UserError(f"model.attention={wanted} runs on {needed} only, this run is on {device.type}: use model.attention=auto")
    reason = _obstacle(causal)
    if reason is None:
        causal.set_attn_implementation(REGISTERED)
        return wanted
    if name == "auto":
        return "sdpa"
    raise UserError(f"model.attention={wanted} cannot serve {type(causal).__name__}: {reason}; use model.attention=auto")


def _obstacle(causal: Any) -> str | None:
    config = causal.config.get_text_config() if hasattr(causal.config, "get_text_config") else causal.config
    if not causal._can_set_attn_implementation() or not getattr(causal, "_supports_sdpa", False):
        return "it does not take its attention from transformers' registry"
    if getattr(config, "attention_dropout", 0.0):
        return "it has attention dropout (model.disable_dropout=true switches it off)"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps its attention scores"
    return None


def arguments(name: str, row: PackedRow, dtype: torch.dtype, layouts: dict[str, PackedAttention]) -> dict[str, Any]:
    """What to pass to the backbone so that it attends within the row. layouts: kept with the row, so that all passes share one."""
    if name in ("sdpa", "eager"):
        return {"attention_mask": dense_mask(row.end_T, dtype)}
    key = f"{name}/{dtype}"
    if key not in layouts:
        layouts[key] = _make(name, row, dtype)
    # a mask of four dimensions is passed on as it is, so that transformers makes none of its own
    return {"attention_mask": torch.empty(1, 1, 0, 0, device=row.end_T.device), "packed": layouts[key]}
