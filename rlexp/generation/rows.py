"""The rows of a batch that are being decoded, with their key-value cache."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from rlexp.generation.base import Policy
from rlexp.generation.batches import Prompts
from rlexp.generation.cache import new_cache, select_rows
from rlexp.generation.inference import causal_model


class Rows:
    """The rows that are forwarded, with their cache.

    number: int64 [m], the request of each row. logits: [m, V] for its next token. leave: share of ended rows at which the cache is compacted.
    """

    leave = 1 / 16
    """the copy costs about half a step and saves this share of each later one"""

    def __init__(self, policy: Policy, prompts: Prompts, width: int) -> None:
        self.module: Any = policy.module
        self.context = policy.context
        causal = causal_model(self.module)
        # without logits_to_keep, which some architectures lack, the logits of all prompt tokens are computed and dropped
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(causal.forward).parameters else {}
        self.cache = new_cache(causal.config)
        self.mask: Tensor | None = prompts.mask
        logits = self._forward(prompts.ids, prompts.position)
        select_rows(self.cache, prompts.of_row)
        self.number = torch.arange(len(prompts.of_row), device=prompts.ids.device)
        self.logits = logits[prompts.of_row]
        self.length = prompts.length[prompts.of_row]
        if self.mask is not None:
            self.prompt_width = prompts.ids.shape[1]
            self.full_mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), width)], 1)[prompts.of_row]

    def keep(self, chosen: Tensor) -> None:
        """Forward only the chosen rows (int64 places) from now on."""
        select_rows(self.cache, chosen)
        self.number, self.length = self.number[chosen], self.length[chosen]
        if self.mask is not None:
            self.full_mask = self.full_mask[chosen]

    def step(self, ids: Tensor, step: int) -> None:
        """Forward token `step` of each row."""
        if self.mask is not None:
            self.mask = self.full_mask[:, : self.prompt_width + step + 1]
        position = (self.length + step).clamp(max=self.context - 1)  # only rows that have ended would go beyond
        self.logits = self._forward(ids[:, None], position[:, None])

    def _forward(self, ids: Tensor, position: Tensor) -> Tensor:
        output = self.module(input_ids=ids, attention_mask=self.mask, position_ids=position, past_key_values=self.cache, use_cache=True, **self.options)
        return output.logits[:, -1]
