"""A child that ends when its parent does, so that `kill -9` of the parent leaves nothing behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

PARENT = "RLEXP_PARENT_PID"
"""Environment of a child: the process it belongs to"""
EVERY = 0.2
"""Seconds between two looks"""


def follow_parent(on_death: Callable[[], None]) -> None:
    """If this process was given a parent to follow, call `on_death` (in a thread) as soon as that parent is gone."""
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(EVERY)
        on_death()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
