"""The output head, walked in chunks: logits exist for `chunk` loss terms at a time, forward and backward.

The forward keeps hidden states only; the backward recomputes each chunk's logits and differentiates only the columns that received
a gradient. Peak memory is independent of tokens x vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlexp.models.columns import COLUMNS, Chunk

ChunkMaker = Callable[[Tensor, slice], Chunk]
"""(hidden_KD, which terms) -> the chunk with its logits"""


def _slices(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]


class _ChunkedColumns(torch.autograd.Function):
    """hidden_LD and the head's parameters to columns [L]."""

    @staticmethod
    def forward(ctx: Any, make: ChunkMaker, names: tuple[str, ...], chunk: int, hidden_LD: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.make, ctx.names, ctx.chunk = make, names, chunk
        ctx.save_for_backward(hidden_LD, *parameters)
        ctx.set_materialize_grads(False)
        parts: list[list[Tensor]] = [[] for _ in names]
        for where in _slices(len(hidden_LD), chunk):
            made = make(hidden_LD[where], where)
            for values, name in zip(parts, names, strict=True):
                values.append(COLUMNS[name](made))
        return tuple(torch.cat(values) for values in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_LD, *parameters = ctx.saved_tensors
        wanted = [i for i, gradient in enumerate(gradients) if gradient is not None]
        trained = [i for i, parameter in enumerate(parameters) if parameter.requires_grad]
        hidden_gradient = torch.zeros_like(hidden_LD)
        parameter_gradients = {i: torch.zeros_like(parameters[i]) for i in trained}
        for where in _slices(len(hidden_LD), ctx.chunk):
            with torch.enable_grad():
                hidden = hidden_LD[where].detach().requires_grad_()
                made = ctx.make(hidden, where)
                outputs = [COLUMNS[ctx.names[i]](made) for i in wanted]
            found = torch.autograd.grad(outputs, [hidden, *(parameters[i] for i in trained)], [gradients[i][where] for i in wanted], allow_unused=True)  # type: ignore[index]
            if found[0] is not None:
                hidden_gradient[where] = found[0]
            for i, gradient in zip(trained, found[1:], strict=True):
                if gradient is not None:
                    parameter_gradients[i] += gradient
        return (None, None, None, hidden_gradient, *(parameter_gradients.get(i) for i in range(len(parameters))))


def columns_of(make: ChunkMaker, names: Sequence[str], chunk: int, hidden_LD: Tensor, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """The named columns of all loss terms, each [L].

    make: builds a chunk from its hidden states; must be repeatable. names: keys of COLUMNS. chunk: terms whose logits exist at
    once. hidden_LD: hidden state that predicts each term. parameters: the head's weights, so that they receive gradients.
    """
    if len(hidden_LD) == 0:
        zero = hidden_LD.sum() * 0 + sum(parameter.sum() * 0 for parameter in parameters)
        return {name: zero.expand(0) for name in names}
    values = _ChunkedColumns.apply(make, tuple(names), chunk, hidden_LD, *parameters)
    return dict(zip(names, values, strict=True))
