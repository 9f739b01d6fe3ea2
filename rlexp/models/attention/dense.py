"""Dense attention: a T x T mask given to the model's own attention. Any architecture, any device; time and memory grow with T^2."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_mask(end_T: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask [1, 1, T, T] of a row; end_T: int64 [T], one past the last position below each."""
    here = torch.arange(len(end_T), device=end_T.device)
    seen = (here[None, :] <= here[:, None]) & (here[:, None] < end_T[None, :])
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]
