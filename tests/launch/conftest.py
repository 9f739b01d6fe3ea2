"""Where runs of these tests live."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An outputs root, not yet made; no sweep and no ranks in the environment."""
    root = tmp_path / "outputs"
    monkeypatch.setenv("RLEXP_OUTPUTS", str(root))
    for name in ("RLEXP_SWEEP_DIR", "RLEXP_SWEEP_JOB", "RLEXP_PARENT_PID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return root
