"""The memory of the divergence does not depend on tokens x vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlexp.config.sdpo import SDPOConfig
from rlexp.models.columns import COLUMNS, Chunk
from rlexp.models.distillation import Distillation
from rlexp.models.head import columns_of
from scripts.bench.processes import EXACT_MEMORY, once
from scripts.bench.workloads import LOGITS


class Largest(TorchDispatchMode):
    """The largest number of elements of any tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


MODES: list[dict[str, Any]] = [
    {},
    {"distillation_mode": "full_logits", "distillation_alpha": 0.5},
    {"distillation_mode": "topk_logits", "distillation_topk": 20},
]


@pytest.mark.rows("SDPO-009", "SDPO-010")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(mode.get("distillation_mode", "sampled_token")))
@pytest.mark.parametrize("tokens", [8, 200])
def test_nothing_is_larger_than_a_chunk(tokens: int, mode: dict[str, Any]) -> None:
    vocabulary, width, chunk = 500, 4, 8
    head = torch.nn.Linear(width, vocabulary, bias=False)
    hidden, other = torch.randn(tokens, width).requires_grad_(), torch.randn(tokens, width)
    target = torch.randint(vocabulary, (tokens,))

    def make(output: torch.Tensor, where: slice) -> Chunk:
        return Chunk(output, target[where], companion_logits={"teacher": head(other[where]).detach()})

    columns = {"logp": COLUMNS["logp"], "distillation": Distillation.of(SDPOConfig(**mode))}
    with Largest() as largest:
        found = columns_of(head, make, columns, chunk, hidden, head)
        (found["logp"].sum() + found["distillation"].sum()).backward()
    assert largest.elements == chunk * vocabulary
    assert hidden.grad is not None and bool((hidden.grad != 0).any())


LARGE: list[tuple[dict[str, Any], int]] = [
    ({}, 360),
    ({"distillation_mode": "full_logits", "distillation_alpha": 0.5}, 770),
    ({"distillation_mode": "topk_logits", "distillation_topk": 100, "distillation_add_tail": True}, 430),
]
"""mode, and MiB that docs/differences_from_trl.md names, with a tenth to spare"""


@pytest.mark.rows("SDPO-008", "SDPO-009", "SDPO-010")
@pytest.mark.parametrize(("mode", "most"), LARGE, ids=[str(mode.get("distillation_mode", "sampled_token")) for mode, _ in LARGE])
def test_with_a_large_vocabulary(mode: dict[str, Any], most: int, tmp_path: Path) -> None:
    """150,000 tokens: extra bytes of the heads of student and teacher, measured as the logits figure of the benchmarks, in a process of its own.

    Whole logits of one side would be 146 MiB for 256 terms and 586 MiB for 1024.
    """
    few, many = (
        once("logits", "scripts.bench.logits:distillation", tmp_path / "log", mode, tokens, LOGITS, environment=EXACT_MEMORY) / 2**20 for tokens in (256, 1024)
    )
    assert many <= LOGITS.flat * few
    assert many <= most
