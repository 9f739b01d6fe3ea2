"""Parameters that DeepSpeed ZeRO-3 has cut: flat parts of equal length, the last one padded. Imports DeepSpeed when there are any."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_partitioned(tensor: Any) -> bool:
    """Whether ZeRO-3 holds it in parts; its own shape is then [0]."""
    return hasattr(tensor, "ds_id")


def gathered(parameter: Any) -> Tensor:
    """The whole parameter, in float32 where the optimizer trains it so. An exchange: every rank must call it, in the same order."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    if parameter.requires_grad and hasattr(parameter, "_z3_optimizer"):
        trained: Tensor = safe_get_full_fp32_param(parameter)
        return trained.detach().clone()
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def assign_partitioned(parameter: Any, value: Tensor) -> None:
    """Give a parameter the values of a whole tensor: what computes, and the float32 part of the optimizer. An exchange where it has none."""
    import deepspeed
    from deepspeed.utils import safe_set_local_fp32_param

    if parameter.requires_grad and hasattr(parameter, "_z3_optimizer"):
        part = own_flat_part(parameter, value)
        parameter.ds_tensor.data.copy_(part)
        safe_set_local_fp32_param(parameter, part)
        return
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):  # it may be whole now, and would stay so with its old values
        parameter.data.copy_(value)


def own_flat_part(parameter: Any, value: Tensor) -> Tensor:
    """This rank's part of a whole tensor, cut and padded as ZeRO-3 cuts the parameter."""
    size, rank = parameter.ds_tensor.ds_numel, torch.distributed.get_rank()
    flat = value.detach().flatten().to(parameter.ds_tensor.device)
    mine = flat[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(mine, (0, size - len(mine)))
