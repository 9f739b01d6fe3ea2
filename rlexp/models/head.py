"""The output head, walked in chunks: logits exist for `chunk` loss terms at a time, forward and backward.

The forward keeps hidden states only; the backward recomputes each chunk's logits and differentiates only the columns that received
a gradient. Peak memory is independent of tokens x vocabulary. Products with the head's weight are added to one gradient in place: left
to autograd, every chunk would allocate a gradient of the whole weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.models.columns import Chunk, Column

Projection = Callable[[Tensor], Tensor]
"""hidden_KD -> what the linear head gives, [K, V], in the dtype it computes in"""
ChunkMaker = Callable[[Tensor, slice], Chunk]
"""(the head's output [K, V], which terms) -> the chunk with its logits"""


def _slices(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]


def _add_product(total: Tensor, left_KV: Tensor, right_KD: Tensor) -> None:
    """total [V, D] += left^T right."""
    if total.dtype == left_KV.dtype:
        total.addmm_(left_KV.t(), right_KD)
    else:
        total += left_KV.t() @ right_KD


class _ChunkedColumns(torch.autograd.Function):
    """hidden_LD and the head's weight and bias to columns [L]."""

    @staticmethod
    def forward(
        ctx: Any, project: Projection, make: ChunkMaker, columns: tuple[Column, ...], chunk: int, hidden_LD: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.project, ctx.make, ctx.columns, ctx.chunk = project, make, columns, chunk
        ctx.save_for_backward(hidden_LD, weight, bias)
        ctx.set_materialize_grads(False)
        parts: list[list[Tensor]] = [[] for _ in columns]
        for where in _slices(len(hidden_LD), chunk):
            made = make(project(hidden_LD[where]), where)
            for values, column in zip(parts, columns, strict=True):
                values.append(column(made))
        return tuple(torch.cat(values) for values in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_LD, weight, bias = ctx.saved_tensors
        wanted = [i for i, gradient in enumerate(gradients) if gradient is not None]
        for_hidden = torch.zeros_like(hidden_LD) if ctx.needs_input_grad[4] else None
        # chunks are summed in float32 where the weight itself is narrower
        for_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)) if ctx.needs_input_grad[5] else None
        for_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[6] else None
        for where in _slices(len(hidden_LD), ctx.chunk):
            output = ctx.project(hidden_LD[where]).detach().requires_grad_()
            with torch.enable_grad():
                made = ctx.make(output, where)
                columns = [ctx.columns[i](made) for i in wanted]
            (found,) = torch.autograd.grad(columns, [output], [gradients[i][where] for i in wanted])  # type: ignore[index]
            if for_hidden is not None:
                for_hidden[where] = found @ weight.to(found.dtype)
            if for_weight is not None:
                _add_product(for_weight, found, hidden_LD[where].to(found.dtype))
            if for_bias is not None:
                for_bias += found.sum(0)
        return None, None, None, None, for_hidden, for_weight.to(weight.dtype) if for_weight is not None else None, for_bias


def columns_of(project: Projection, make: ChunkMaker, columns: Mapping[str, Column], chunk: int, hidden_LD: Tensor, head: nn.Linear) -> dict[str, Tensor]:
    """The named columns of all loss terms, each [L].

    project: the head, in the precision it is to compute in. make: builds a chunk from its output; both must be repeatable. columns: by
    name. chunk: terms whose logits exist at once. hidden_LD: hidden state that predicts each term. head: its weights receive gradients.
    """
    if len(hidden_LD) == 0:
        zero = hidden_LD.sum() * 0 + sum(parameter.sum() * 0 for parameter in head.parameters())
        return {name: zero.expand(0) for name in columns}
    values = _ChunkedColumns.apply(project, make, tuple(columns.values()), chunk, hidden_LD, head.weight, head.bias)
    return dict(zip(columns, values, strict=True))
