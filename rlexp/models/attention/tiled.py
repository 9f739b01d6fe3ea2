"""Tiled attention for the CPU: torch's flash kernel on each tile, with gradients summed in place.

Autograd over slices would allocate a gradient of the whole row for every tile; here keys and values have one gradient buffer each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.models.attention import tiles
from rlexp.models.attention.tiles import Tile, tiles_of

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Tiled:
    """Attention of one row. end_T, depth_T: int64 [T] of the row; dtype: of queries, keys and values."""

    def __init__(self, end_T: np.ndarray, depth_T: np.ndarray, dtype: torch.dtype) -> None:
        self.tiles = tiles_of(end_T, depth_T, overhead=tiles.OVERHEAD, longest=tiles.LONGEST)
        self._end = torch.from_numpy(np.ascontiguousarray(end_T))
        self._low = torch.finfo(dtype).min
        # one triangle serves every chain: its columns left of `_left` are the ancestors, which all queries see
        chains = [tile for tile in self.tiles if tile.chain and tile.width > tile.queries]
        rows = max((tile.queries for tile in chains), default=0)
        self._left = max((tile.width - tile.queries for tile in chains), default=0)
        self._triangle = torch.zeros(rows, self._left + rows, dtype=dtype)
        self._triangle[:, self._left :] = torch.full((rows, rows), self._low, dtype=dtype).triu_(1)
        self._masks = [None if tile.chain else self._branches(tile, dtype) for tile in self.tiles]

    def _branches(self, tile: Tile, dtype: torch.dtype) -> Tensor:
        key, query = torch.from_numpy(tile.key_index), torch.arange(tile.start, tile.stop)
        seen = (key[None, :] <= query[:, None]) & (query[:, None] < self._end[key][None, :])
        return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, self._low)[None, None]

    def mask(self, number: int) -> Tensor | None:
        """Additive mask [1, 1, queries, keys] of a tile; None where plain causal attention serves."""
        tile = self.tiles[number]
        if not tile.chain:
            return self._masks[number]
        offset = tile.width - tile.queries
        if offset == 0:
            return None
        return self._triangle[None, None, : tile.queries, self._left - offset : self._left + tile.queries]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T, D], key and value [1, H or fewer, T, D] -> [1, H, T, D]."""
        return _TiledFunction.apply(self, query, key, value, scale)


def _gather(states: Tensor, tile: Tile) -> Tensor:
    parts = [states[:, :, start:stop] for start, stop in tile.keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _scatter(total: Tensor, part: Tensor, tile: Tile) -> None:
    at = 0
    for start, stop in tile.keys:
        total[:, :, start:stop] += part[:, :, at : at + stop - start]
        at += stop - start


class _TiledFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Tiled, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(query)
        normaliser = []
        for number, tile in enumerate(plan.tiles):
            mask, own = plan.mask(number), slice(tile.start, tile.stop)
            found, log_sum = _forward(query[:, :, own], _gather(key, tile), _gather(value, tile), 0.0, mask is None, attn_mask=mask, scale=scale)
            out[:, :, own] = found
            normaliser.append(log_sum)
        ctx.plan, ctx.scale = plan, scale
        ctx.save_for_backward(query, key, value, out, *normaliser)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *normaliser = ctx.saved_tensors
        for_query, for_key, for_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for number, tile in enumerate(ctx.plan.tiles):
            mask, own = ctx.plan.mask(number), slice(tile.start, tile.stop)
            states = (query[:, :, own], _gather(key, tile), _gather(value, tile), out[:, :, own], normaliser[number])
            found = _backward(gradients[0][:, :, own], *states, 0.0, mask is None, attn_mask=mask, scale=ctx.scale)
            for_query[:, :, own] = found[0]
            _scatter(for_key, found[1], tile)
            _scatter(for_value, found[2], tile)
        return None, for_query, for_key, for_value, None
