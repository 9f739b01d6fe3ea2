"""Large tensors of a run start at a page, as those do for which torch asks the kernel for large pages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from programs import TESTS
from run_folders import metrics
from small_runs import Cli

from rlexp.launch.pages import LARGE_PAGES, use_large_pages

ALIGNED = """
import torch

def score(completions):
    large = [torch.empty(3 * 2**20) for _ in range(8)]
    return [float(all(tensor.data_ptr() % 4096 == 0 for tensor in large))] * len(completions)
"""


def test_a_run_asks_for_them_before_torch_allocates(cli: Cli) -> None:
    """A process of its own: torch reads the wish once, and tests share a process that has torch."""
    command = [sys.executable, "-m", "rlexp.train", *cli.options(*cli.rewards(ALIGNED), "trainer.max_steps=1", "evaluation=none")]
    environment = {name: value for name, value in os.environ.items() if name != LARGE_PAGES}
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "contracts" / "plugin")])
    done = subprocess.run(command, cwd=cli.folder, env={**environment, "RLEXP_OUTPUTS": str(cli.out), "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert metrics(cli.run)[0]["reward"] == 1.0


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LARGE_PAGES, "0")
    use_large_pages()
    assert os.environ[LARGE_PAGES] == "0"
    monkeypatch.delenv(LARGE_PAGES)
    use_large_pages()
    assert os.environ[LARGE_PAGES] == "1"
