"""A third-party package, really installed, and a program that sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., subprocess.CompletedProcess[str]]

_MAIN = """
import sys
sys.argv[0] = "rlexp-train"
from rlexp.train import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


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
        command = [sys.executable, "-c", _MAIN, *arguments]
        variables = {**os.environ, "PYTHONPATH": str(site), **environment}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=False)

    return run
