"""scripts/gpu_check.py runs whole, tiny, on the CPU: what it does on a GPU differs in sizes and backends only."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from test_house import ROOT


def test_the_gpu_check_runs_and_finds_wrong_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "scripts" / "gpu_check.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--small", "--out", str(tmp_path / "figures.json")])
    monkeypatch.setattr(script, "ROUNDS", 1)
    with pytest.raises(SystemExit) as done:
        script.main()
    assert done.value.code == 0 and "all numbers agree" in capsys.readouterr().out
    lines = json.loads((tmp_path / "figures.json").read_text())["lines"]
    assert {line["what"] for line in lines} >= {"packed: tiles", "padded baseline", "generation: native"}

    right = script.Packed.logps
    monkeypatch.setattr(script.Packed, "logps", lambda self: right(self) * (1.01 if self.network.attention == "tiles" else 1))
    with pytest.raises(SystemExit) as done:
        script.main()
    assert done.value.code == 1 and "WRONG: small numbers: tiles" in capsys.readouterr().out
