"""A third-party package, really installed, and a program that sees it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from train_program import run_train

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def plugin_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH into which pip has installed rlx_extra."""
    source, site = tmp_path_factory.mktemp("plugin") / "rlx_extra", tmp_path_factory.mktemp("site")
    shutil.copytree(Path(__file__).parent / "rlx_extra", source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    return site


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Run `rlexp-train ARGUMENTS` with a folder of installed packages; it fails if torch gets imported."""

    def run(site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_train(arguments, tmp_path, {"PYTHONPATH": str(site), **environment})

    return run
