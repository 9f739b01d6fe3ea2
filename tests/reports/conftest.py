"""A run to report on."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import write_run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return write_run(tmp_path_factory.mktemp("outputs") / "addition-grpo-dapo-tiny-s1")
