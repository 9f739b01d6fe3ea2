"""The output head in float32, whatever the rest computes in (ScaleRL, arXiv 2510.13786; MiniMax-M1, arXiv 2506.13585)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.config.errors import UserError
from rlexp.models.router import causal_of


class Float32Head(nn.Linear):
    """A linear layer that takes hidden states of any dtype and computes in its own, under autocast too."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits in the dtype of the weights."""
        with torch.autocast(hidden.device.type, enabled=False):
            return functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)


def use_float32_head(module: Any) -> None:
    """Make the head of a causal LM compute in at least float32: in the policy, its companions (copies of it) and the sampler, which all call it.

    Raises UserError for a head that is tied to the embeddings, whose dtype would change with it (rows GRPO-103, GRPO-267).
    """
    causal = causal_of(module)
    head, embeddings = causal.get_output_embeddings(), causal.get_input_embeddings()
    if head.weight is embeddings.weight:
        raise UserError(
            f"model.cast_lm_head_to_fp32=true needs a head of its own, and that of {type(causal).__name__} is tied to its embeddings "
            "(tie_word_embeddings): set model.cast_lm_head_to_fp32=false"
        )
    if type(head) is not nn.Linear:
        raise UserError(f"model.cast_lm_head_to_fp32=true: the head of {type(causal).__name__} is no plain linear layer: set model.cast_lm_head_to_fp32=false")
    head.to(torch.promote_types(head.weight.dtype, torch.float32))
    head.__class__ = Float32Head
