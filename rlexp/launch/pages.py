"""Large pages of main memory for large tensors."""

from __future__ import annotations

import os

LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""read by torch at its first allocation: tensors from 2 MiB on start at a page, and the kernel is asked for large ones (madvise)"""


def use_large_pages() -> None:
    """For this process and its children, unless the user has said otherwise. Before torch is imported.

    Activations and gradients are freed and asked for again at every step, and each page of 4 KiB is then a fault that the kernel answers with a cleared
    page: with 135 million weights a quarter and more of an update on two cores.
    """
    os.environ.setdefault(LARGE_PAGES, "1")
