"""Fixtures of the comparison with TRL, which the extra `peer` installs; without it one test says so and the rest is not collected."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path

import pytest
import torch
from models_for_tests import tiny_model

collect_ignore_glob = [] if importlib.util.find_spec("trl") else ["test_[!i]*.py"]


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


def saved(folder: Path, seed: int) -> Path:
    """Save a network that both sides load."""
    loaded = tiny_model(dtype=torch.float32, spread=2.0, seed=seed)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder
