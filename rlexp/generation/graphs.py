"""generation.cuda_graphs: decoding in steps of one shape, which a GPU replays as a CUDA graph.

A step of a small model on a GPU takes as long as the CPU needs to launch its kernels; a replayed graph is one launch. A graph fixes
addresses and shapes, so keys and values are written into buffers of the final width, a mask hides what is not written yet, and rows
that have ended leave only when half of them have. On a CPU the same steps run one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlexp.config.errors import UserError
from rlexp.generation.base import Policy
from rlexp.generation.batches import Prompts
from rlexp.generation.cache import GrowingLayer, select_rows
from rlexp.generation.inference import causal_model
from rlexp.generation.rows import Rows


class FixedLayer(GrowingLayer):
    """Keys and values [rows, heads, width, dim] in place; `slot` (int64 [1]) is the position that is written next, shared by all layers."""

    def __init__(self, prompt: GrowingLayer, width: int, slot: Tensor) -> None:
        super().__init__()
        rows, heads, _, _ = prompt.keys.shape
        self.dtype, self.device, self.is_initialized, self.slot = prompt.dtype, prompt.device, True, slot
        # zeros, since what is hidden still takes part in the product with a probability of 0
        self.keys = prompt.keys.new_zeros(rows, heads, width, prompt.keys.shape[3])
        self.values = prompt.values.new_zeros(rows, heads, width, prompt.values.shape[3])
        self.keys[:, :, : prompt.keys.shape[2]] = prompt.keys
        self.values[:, :, : prompt.values.shape[2]] = prompt.values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the states of one position [rows, heads, 1, dim]; returns the whole buffers."""
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows given, in that order."""
        self.keys, self.values = self.keys.index_select(0, beam_idx), self.values.index_select(0, beam_idx)


class _Step:
    """Fixed places for what a step of so many rows reads, and the graph that was recorded with them."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros_like(self.ids)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = False
        """whether a step was run by hand: it sets up what a recording may not (workspaces, lazily loaded kernels)"""


class FixedRows(Rows):
    """Rows whose steps all have one shape, until half of them have left."""

    leave = 1 / 2

    def __init__(self, policy: Policy, prompts: Prompts, width: int) -> None:
        super().__init__(policy, prompts, width)
        self.prompt_width = prompts.ids.shape[1]
        self.slot = torch.tensor([self.prompt_width], device=prompts.ids.device)
        self.cache.layers = [self._fixed(layer, self.prompt_width + width) for layer in self.cache.layers]
        visible = torch.ones_like(prompts.ids) if prompts.mask is None else prompts.mask
        self._settle(self._mask(visible[prompts.of_row].bool(), width))

    def keep(self, chosen: Tensor) -> None:
        """Forward only the chosen rows (int64 places) from now on: other shapes, so another graph."""
        select_rows(self.cache, chosen)
        self.number, self.length = self.number[chosen], self.length[chosen]
        self._settle(self.hidden[chosen])

    def step(self, ids: Tensor, step: int) -> None:
        """Forward token `step` of each row."""
        self.slot.fill_(self.prompt_width + step)
        self.hidden.index_fill_(3, self.slot, 0.0)
        fixed = self.fixed
        fixed.ids.copy_(ids[:, None])
        fixed.position.copy_((self.length + step).clamp(max=self.context - 1)[:, None])
        if fixed.graph is not None:
            fixed.graph.replay()
        elif fixed.ids.is_cuda and fixed.warm:
            fixed.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(fixed.graph):
                self.logits = self._forward(fixed.ids, fixed.position)
            fixed.graph.replay()  # recording does not run the step
        else:
            self.logits = self._forward(fixed.ids, fixed.position)
            fixed.warm = True

    def _settle(self, mask: Tensor) -> None:
        """Places for the rows there are now; the graph of others is over."""
        self.mask = self.hidden = mask
        self.fixed = _Step(len(self.number), mask.device)

    def _mask(self, visible: Tensor, width: int) -> Tensor:
        """[rows, 1, 1, prompt + width]: what each row does not see now. Additive in the dtype of the weights, which every attention of transformers takes."""
        dtype = next(self.module.parameters()).dtype
        mask = torch.full((len(visible), 1, 1, visible.shape[1] + width), torch.finfo(dtype).min, dtype=dtype, device=visible.device)
        mask[:, 0, 0, : visible.shape[1]].masked_fill_(visible, 0.0)
        return mask

    def _fixed(self, layer: Any, width: int) -> FixedLayer:
        if type(layer) is not GrowingLayer:
            name = type(causal_model(self.module)).__name__
            raise UserError(f"generation.cuda_graphs=true serves models with full attention in every layer, and {name} has others: leave it out")
        return FixedLayer(layer, width, self.slot)
