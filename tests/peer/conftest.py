"""Fixtures of the comparison with TRL, which the extra `peer` installs; without it one test says so and the rest is not collected."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path

import pytest
from peer.networks import saved

TESTS = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_installed.py"]
collect_ignore = TESTS if importlib.util.find_spec("trl") is None else []


@pytest.fixture(scope="session", autouse=True)
def _frozen() -> None:
    """TRL's trainers collect garbage each time they train: leave out what the libraries made when they were imported (a third of the time)."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random float32 network of Qwen3's type and its tokenizer."""
    return saved(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights, for a reference that differs from the policy."""
    return saved(tmp_path_factory.mktemp("other"), seed=1)
