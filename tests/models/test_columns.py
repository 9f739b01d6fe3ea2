"""Columns and their hand-written gradients."""

from __future__ import annotations

import pytest
import torch

from rlexp.models.columns import COLUMNS, Chunk
from rlexp.models.head import columns_of


@pytest.mark.parametrize("name", ["logp", "entropy"])
def test_columns_and_gradients_equal_the_plain_formula(name: str) -> None:
    logits = (3 * torch.randn(5, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).requires_grad_()
    target = torch.tensor([0, 3, 3, 10, 5])
    mine = COLUMNS[name](Chunk(logits, target))
    log_probs = torch.log_softmax(logits, -1)
    plain = log_probs.gather(-1, target[:, None])[:, 0] if name == "logp" else -(log_probs.exp() * log_probs).sum(-1)
    assert torch.allclose(mine, plain, atol=1e-12, rtol=0)
    weights = torch.linspace(-1, 2, 5, dtype=torch.float64)
    gradients = [torch.autograd.grad((values * weights).sum(), logits, retain_graph=True)[0] for values in (mine, plain)]
    assert torch.allclose(*gradients, atol=1e-12, rtol=0)
    assert torch.autograd.gradcheck(lambda values: COLUMNS[name](Chunk(values, target)), logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_head_with_a_bias_gets_all_gradients(dtype: torch.dtype) -> None:
    """In bfloat16 the chunks are summed in float32, so that the chunk size does not show in the weight's gradient."""
    head = torch.nn.Linear(6, 9).to(dtype)
    hidden = torch.randn(13, 6, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    target = torch.arange(13) % 9

    def gradients(chunk: int) -> list[torch.Tensor]:
        def make(output: torch.Tensor, where: slice) -> Chunk:
            return Chunk(output.to(torch.promote_types(dtype, torch.float32)), target[where])

        return list(torch.autograd.grad(columns_of(head, make, {"logp": COLUMNS["logp"]}, chunk, hidden, head)["logp"].sum(), [hidden, head.weight, head.bias]))

    log_probs = torch.log_softmax(head(hidden).to(torch.promote_types(dtype, torch.float32)), -1).gather(-1, target[:, None])
    plain = torch.autograd.grad(log_probs.sum(), [hidden, head.weight, head.bias])
    for chunk in (1, 4, 13, 100):
        for mine, theirs in zip(gradients(chunk), plain, strict=True):
            assert mine.dtype == dtype and torch.allclose(mine, theirs, atol=1e-12 if dtype == torch.float64 else 0.05, rtol=0.02)
