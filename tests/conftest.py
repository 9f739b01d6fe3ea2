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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attention", help="what model.attention=auto takes in this process: sdpa runs all exactness tests with a dense mask")


@pytest.fixture(autouse=True)
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few tokens would be one tile; tiny tiles make every test of packed rows one of the tiling too."""
    if "torch" not in sys.modules:
        return
    from rlexp.models.attention import interface, tiles

    monkeypatch.setattr(tiles, "OVERHEAD", 8)
    monkeypatch.setattr(tiles, "LONGEST", 3)
    if chosen := request.config.getoption("--attention"):
        monkeypatch.setitem(interface.CHECKED, "cpu", chosen)


@pytest.fixture(scope="session")
def programs():
    """Runs rlexp's programs in processes of their own (see programs.py)."""
    made = Programs()
    yield made
    made.close()
