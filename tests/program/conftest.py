"""Whole runs of the smallest kind, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs
from small_runs import Cli


@pytest.fixture
def cli(programs: Programs, tmp_path: Path) -> Cli:
    """Programs in a folder of this test."""
    return Cli(programs, tmp_path)
