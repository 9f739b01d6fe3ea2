"""FlashAttention's variable-length kernel (torch.nn.attention.varlen) on the runs between forks.

Each run becomes one sequence whose keys are gathered from its ancestors and itself; the kernel's causal mask is aligned to the end, so
that each query sees all ancestors. GPU only, bfloat16 or float16.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from rlexp.models.attention.tiles import tiles_of


class Varlen:
    """Attention of one row. end_T, depth_T: int64 [T] of the row."""

    def __init__(self, end_T: np.ndarray, depth_T: np.ndarray, device: torch.device) -> None:
        runs = tiles_of(end_T, depth_T, overhead=0, longest=len(end_T))
        queries, keys = [run.queries for run in runs], [run.width for run in runs]
        self._longest_query, self._longest_key = max(queries), max(keys)
        self._query_offsets = torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32, device=device)
        self._key_offsets = torch.tensor(np.cumsum([0, *keys]), dtype=torch.int32, device=device)
        self._gather = torch.from_numpy(np.concatenate([run.key_index for run in runs])).to(device)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, H, T, D], key and value [1, H or fewer, T, D] -> [1, H, T, D]."""
        keys, values = (states[0].transpose(0, 1).index_select(0, self._gather) for states in (key, value))
        out = varlen_attn(
            query[0].transpose(0, 1),
            keys,
            values,
            self._query_offsets,
            self._key_offsets,
            self._longest_query,
            self._longest_key,
            scale=scale,
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        assert isinstance(out, Tensor)
        return out.transpose(0, 1)[None]
