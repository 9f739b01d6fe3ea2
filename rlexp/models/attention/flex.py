"""FlexAttention (torch.nn.attention.flex_attention) with a block mask that is made from the trie, never from a T x T mask."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128


@functools.cache
def _kernel(device: str) -> Callable[..., Tensor]:
    """Compiled on a GPU. On a CPU the plain form, which has no backward: it is there to check the mask."""
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True)
    return compiled if device == "cuda" else flex_attention  # type: ignore[return-value]


def _lists(chosen: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Counts [1, 1, blocks] and indices [1, 1, blocks, blocks] of the chosen key blocks of each query block, chosen ones first."""
    order = np.argsort(~chosen, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(chosen.sum(1, dtype=np.int32))[None, None].to(device), torch.from_numpy(order)[None, None].to(device)


def block_mask(end_T: np.ndarray, end: Tensor) -> BlockMask:
    """Which blocks of keys each block of queries needs, and which of those need no mask.

    end_T: int64 [T]; end: the same on the device, padded to whole blocks by 0. Position i sees j exactly if j <= i < end[j], so block
    q needs block k <= q if its first query lies before the largest end of k, and needs no mask if k < q and its last query lies
    before the smallest.
    """
    blocks = -(-len(end_T) // BLOCK)
    padded = np.zeros(blocks * BLOCK, np.int64)
    padded[: len(end_T)] = end_T
    ends = padded.reshape(blocks, BLOCK)
    here = np.arange(blocks)
    past = here[None, :] < here[:, None]
    whole = past & ((here[:, None] + 1) * BLOCK <= ends.min(1)[None, :])
    needed = (past & (here[:, None] * BLOCK < ends.max(1)[None, :]) | (here[None, :] == here[:, None])) & ~whole

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    lists = (*_lists(needed, end.device), *_lists(whole, end.device))
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(len(end_T), len(end_T)))


class Flex:
    """Attention of one row. end_T: int64 [T] of the row."""

    def __init__(self, end_T: np.ndarray, device: torch.device) -> None:
        padded = torch.zeros(-(-len(end_T) // BLOCK) * BLOCK, dtype=torch.int64)
        padded[: len(end_T)] = torch.from_numpy(np.ascontiguousarray(end_T))
        self._mask = block_mask(end_T, padded.to(device))
        self._attend = _kernel(device.type)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T, D], key and value [1, H or fewer, T, D] -> [1, H, T, D]."""
        return self._attend(query, key, value, block_mask=self._mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
