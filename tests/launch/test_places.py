"""What jobs side by side get: GPUs and cores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlexp.config.errors import UserError
from rlexp.config.sweep import SweepConfig
from rlexp.launch import places as module
from rlexp.launch.places import deal, listed_gpus, places, visible_gpus

WHOLE = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaa)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbb)
"""
CUT = """GPU 0: NVIDIA H100 (UUID: GPU-aaa)
  MIG 3g.40gb     Device  0: (UUID: MIG-one)
  MIG 3g.40gb     Device  1: (UUID: MIG-two)
GPU 1: NVIDIA H100 (UUID: GPU-bbb)
"""


@pytest.mark.parametrize(
    ("gpus", "jobs", "per_job", "per_gpu", "dealt"),
    [
        ("0123", 4, 1, 1, ["0", "1", "2", "3"]),
        ("0123", 2, 1, 1, ["0", "1"]),
        ("0123", 2, 2, 1, ["01", "23"]),
        ("012", 1, 2, 1, ["01"]),
        ("01", 4, 1, 2, ["0", "1", "0", "1"]),
        ("01", 3, 2, 3, ["01", "01", "01"]),
    ],
)
def test_dealt(gpus: str, jobs: int, per_job: int, per_gpu: int, dealt: list[str]) -> None:
    assert deal(list(gpus), jobs, per_job, per_gpu) == [list(mine) for mine in dealt]


def test_too_few_gpus() -> None:
    with pytest.raises(
        UserError, match=re.escape("sweep.jobs=5 jobs side by side with 2 GPU each need 10 GPUs, and there is 4 of them (CUDA_VISIBLE_DEVICES=0,1,2,3)")
    ) as said:
        deal(list("0123"), 5, 2, 1)
    assert str(said.value).endswith("set sweep.jobs=2, or let jobs share GPUs by sweep.jobs_per_gpu=3")
    assert deal(list("0123"), 5, 2, 3), "what the message advises works"
    assert deal(list("0123"), 2, 2, 1)
    with pytest.raises(UserError, match=r"each job needs 2 GPUs .*, and there is one \(7\): lower that number"):
        deal(["7"], 2, 2, 4)


def test_listed_by_nvidia_smi() -> None:
    assert listed_gpus(WHOLE) == ["0", "1"]
    assert listed_gpus(CUT) == ["MIG-one", "MIG-two", "1"]
    assert listed_gpus("") == listed_gpus("No devices found.\n") == []


@pytest.mark.parametrize(("given", "names"), [("2,3", ["2", "3"]), ("", []), ("-1", []), ("1,-1,2", ["1"]), ("GPU-aaa, GPU-bbb", ["GPU-aaa", "GPU-bbb"])])
def test_what_is_visible_already_counts(given: str, names: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}) == names


def fake_driver(folder: Path, text: str, code: int = 0) -> None:
    """A program nvidia-smi that prints a text."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {code}\n")
    program.chmod(0o755)


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 12)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_driver(tmp_path, WHOLE)
    two = SweepConfig(jobs=2)
    assert places(two, 6, 1, {}) == [
        {"OMP_NUM_THREADS": "6", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"},
        {"OMP_NUM_THREADS": "6", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"},
    ]
    assert places(two, 6, 1, {"CUDA_VISIBLE_DEVICES": "5,4", "OMP_NUM_THREADS": "1"}) == [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "4"}]
    assert places(two, 1, 1, {}) == places(SweepConfig(), 6, 1, {}) == [{}], "one after the other: nothing is shared out"
    assert [place["OMP_NUM_THREADS"] for place in places(SweepConfig(jobs=2, jobs_per_gpu=2), 6, 2, {})] == ["3", "3"], "cores of a job's two processes"
    with pytest.raises(UserError, match=r"sweep\.jobs=3 jobs"):
        places(SweepConfig(jobs=3), 6, 1, {})
    fake_driver(tmp_path, "NVIDIA-SMI has failed\n", code=9)
    assert places(two, 6, 1, {}) == [{"OMP_NUM_THREADS": "6"}] * 2
