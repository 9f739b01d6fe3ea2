"""`rlexp-train` as a process that must not import torch: configuring never does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_MAIN = """
import sys
sys.argv[0] = "rlexp-train"
from rlexp.train import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


def run_train(arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `rlexp-train ARGUMENTS` in a folder; the process fails if torch gets imported."""
    command = [sys.executable, "-c", _MAIN, *arguments]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False)
