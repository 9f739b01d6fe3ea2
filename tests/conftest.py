"""Shared by all tests: helpers beside this file are importable, and nothing reaches a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several test processes share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from programs import Programs


@pytest.fixture(scope="session")
def programs():
    """Runs rlexp's programs in processes of their own (see programs.py)."""
    made = Programs()
    yield made
    made.close()
