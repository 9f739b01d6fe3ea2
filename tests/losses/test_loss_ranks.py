"""A step does not depend on its split, also over two processes, whatever its loss, ratio, correction and masks are."""

from __future__ import annotations

from pathlib import Path

import loss_ranks
import pytest
import torch.multiprocessing as multiprocessing
from loss_product import allowed, made_of

from rlexp.launch.ranks import free_port


@pytest.mark.rows("GRPO-011", "GRPO-012")
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Rollouts of 0 to 6 terms, one wholly masked, in uneven micro-batches; under ddp, and under fsdp2 with log-probs in one process and entropies in the
    other. bnpo, whose definition is the split, against the same micro-batches."""
    path, runs = tmp_path / "found.txt", [made_of(cell, seed) for seed, cell in enumerate(allowed())]
    multiprocessing.spawn(loss_ranks.worker, args=((free_port(), free_port()), str(path), runs), nprocs=2, join=True)
    found = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    for cell, (_, ddp, fsdp2) in zip(allowed(), found, strict=True):
        assert ddp < 1e-9 and fsdp2 < 1e-9, cell
    assert sum(largest > 1e-3 for largest, *_ in found) > 0.95 * len(runs), "masks and weights leave nothing of a few"
