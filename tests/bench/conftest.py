"""A workload small enough for a test, prepared once. TRL's side is tested where the extra `peer` is installed."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scripts.bench import side_rlexp
from scripts.bench.prepare import prepare
from scripts.bench.workloads import Workload

TRL = importlib.util.find_spec("trl") is not None
collect_ignore = [] if TRL else ["test_trl_side.py"]
SMALL = Workload("small", "a test", prompts=2, prompt_tokens=6, generations=4, max_new=10, hidden=16, layers=1, heads=2, vocabulary=64)


@pytest.fixture(scope="session", autouse=True)
def _frozen() -> None:
    """TRL's trainers collect garbage each time they train: leave out what the libraries made when they were imported."""
    if TRL:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sides set the number of threads of their process, which here is the test's."""
    before = torch.get_num_threads()
    monkeypatch.setattr(side_rlexp, "THREADS", 1)
    if side_trl := sys.modules.get("scripts.bench.side_trl"):
        monkeypatch.setattr(side_trl, "THREADS", 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small() -> Workload:
    """Eight completions of at most ten tokens."""
    return SMALL


@pytest.fixture(scope="session")
def inputs(small: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared inputs of `small`."""
    folder = tmp_path_factory.mktemp("inputs")
    with torch.random.fork_rng(devices=[]):
        prepare(small, folder)
    return folder
