"""The machine's limit: the best rate of a square matrix product, fp32 on a CPU and bf16 on a GPU."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import torch

from scripts.bench.workloads import GEMM_SIZES, THREADS

REPEATS = 4
"""the first one warms up"""


def main(pipe: Connection) -> None:
    """A process of its own: sends {size: FLOP/s}."""
    torch.set_num_threads(THREADS)
    pipe.send({size: rate(size) for size in GEMM_SIZES})


@torch.no_grad()
def rate(size: int) -> float:
    """Best FLOP/s of a product of two squares."""
    cuda = torch.cuda.is_available()
    a, b = (torch.randn(size, size, dtype=torch.bfloat16 if cuda else torch.float32, device="cuda" if cuda else "cpu") for _ in range(2))
    out = torch.empty_like(a)
    seconds = []
    for _ in range(REPEATS):
        since = time.perf_counter()
        torch.mm(a, b, out=out)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - since)
    return 2.0 * size**3 / min(seconds[1:])
