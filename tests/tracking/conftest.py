"""Fixtures around the stand-in for wandb."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tracker_fakes import FAKE_WANDB, Folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Folder:
    """An empty run folder."""
    folder = Folder(tmp_path / "myrun")
    folder.path.mkdir()
    return folder


class FakeWandb:
    """The calls the stand-in got."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, self._monkeypatch = folder / "calls.jsonl", monkeypatch
        self.package = folder / "fake"
        self.package.mkdir()
        (self.package / "wandb.py").write_text(FAKE_WANDB)
        self.environment = {"FAKE_WANDB_CALLS": str(self._file), "PYTHONPATH": str(self.package)}
        monkeypatch.setenv("FAKE_WANDB_CALLS", str(self._file))
        monkeypatch.syspath_prepend(str(self.package))
        monkeypatch.delitem(sys.modules, "wandb", raising=False)

    def plan(self, **calls: object) -> None:
        """Which calls fail and how, e.g. plan(log_2="raise", log_3=60)."""
        self._monkeypatch.setenv("FAKE_WANDB_PLAN", json.dumps({call.replace("_", " "): what for call, what in calls.items()}))

    def calls(self, call: str | None = None) -> list[dict[str, Any]]:
        """What was called, in order."""
        lines = [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []
        return [line for line in lines if call in (None, line["call"])]


@pytest.fixture
def fake_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`import wandb` gives the stand-in."""
    yield FakeWandb(tmp_path, monkeypatch)
    sys.modules.pop("wandb", None)
