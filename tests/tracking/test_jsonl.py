"""metrics.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlexp.launch.folder import RunFolder
from rlexp.tracking.jsonl import JsonlLog, read_lines


def test_a_line_is_readable_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "metrics.jsonl")
    log.log(1, "train", {"reward": 0.25, "count": 3, "numpy": np.float32(0.5)}, 1.23456)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "split": "train", "time_s": 1.235, "reward": 0.25, "count": 3, "numpy": 0.5}\n'
    log.log(1, "eval", {"accuracy": 1.0}, 2.0)
    assert [line["split"] for line in read_lines(tmp_path / "metrics.jsonl")] == ["train", "eval"]


def test_what_json_lacks_becomes_null(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "metrics.jsonl")
    log.log(1, "train", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float64("nan")}, 0.0)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "split": "train", "time_s": 0.0, "a": None, "b": None, "c": None, "d": None}


def test_a_metric_cannot_replace_the_step(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "metrics.jsonl")
    log.log(7, "train", {"step": 1.0, "time_s": 2.0}, 3.0)
    assert read_lines(tmp_path / "metrics.jsonl") == [{"step": 7, "split": "train", "time_s": 3.0, "metrics/step": 1.0, "metrics/time_s": 2.0}]


def test_a_line_cut_off_by_a_crash_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlLog(path).log(1, "train", {}, 0.0)
    with open(path, "a") as file:
        file.write('{"step": 2, "spl')
    assert [line["step"] for line in read_lines(path)] == [1]
    assert read_lines(tmp_path / "none.jsonl") == []


@pytest.mark.cases("S42")
def test_steps_after_the_checkpoint_are_cut_off_and_come_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    log = JsonlLog(folder.metrics_path)
    for step in range(1, 6):
        log.log(step, "train", {"life": 1}, 0.0)
    offset = log.offset()  # kept by the checkpoint of step 5
    for step in (6, 7):
        log.log(step, "train", {"life": 1}, 0.0)
    with open(folder.metrics_path, "a") as file:
        file.write('{"step": 8, "sp')  # killed while writing
    assert folder.truncate_metrics(offset, 5) is None
    again = JsonlLog(folder.metrics_path)
    assert again.offset() == offset
    for step in range(6, 11):
        again.log(step, "train", {"life": 2}, 0.0)
    lines = read_lines(folder.metrics_path)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["life"] for line in lines] == [1] * 5 + [2] * 5


@pytest.mark.parametrize("change", [lambda text: text[: len(text) // 2], lambda text: text.replace('"life": 1', '"life": 12345'), lambda text: ""])
def test_a_file_that_was_changed_keeps_what_can_be_kept(tmp_path: Path, change: Callable[[str], str]) -> None:
    folder = RunFolder(tmp_path)
    assert folder.truncate_metrics(0, 0) is None  # nothing there, nothing to cut
    log = JsonlLog(folder.metrics_path)
    for step in (1, 2, 3):
        log.log(step, "train", {"life": 1}, 0.0)
    offset = log.offset()  # of the checkpoint of step 3
    log.log(4, "train", {"life": 1}, 0.0)
    folder.metrics_path.write_text(change(folder.metrics_path.read_text()))
    kept = [line for line in read_lines(folder.metrics_path) if line["step"] <= 3]
    assert "was changed since step 3 was saved" in str(folder.truncate_metrics(offset, 3))
    assert read_lines(folder.metrics_path) == kept and folder.metrics_path.read_bytes()[-1:] in (b"", b"\n")
