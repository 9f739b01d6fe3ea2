"""Trackers, and what their failures may not do."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from run_configs import composed

from rlexp.tracking.hub import TrackerHub


def config(*overrides: str) -> Any:
    return composed("tracker=[wandb]", *overrides)


def test_names_prefixes_and_thinning(fake_wandb: Any, run_folder: Any) -> None:
    hub = TrackerHub(config("tracker.steps=2"), run_folder)
    for step in range(1, 5):
        hub.log(step, "train", {"reward": step / 10})
    hub.log(3, "eval", {"accuracy": 0.5})
    hub.finish(0)
    assert [call["metrics"] for call in fake_wandb.calls("log")] == [{"reward": 0.2, "step": 2}, {"reward": 0.4, "step": 4}, {"eval/accuracy": 0.5, "step": 3}]
    (init,) = fake_wandb.calls("init")
    assert init["name"] == "myrun" and init["config"]["loss"]["name"] == "dapo" and init["group"] is None


@pytest.mark.cases("S42", "S55")
def test_the_id_is_kept_in_the_folder_and_used_again(fake_wandb: Any, run_folder: Any) -> None:
    run_folder.sweep = "mysweep"
    for first, last in ((0, 7), (5, 10)):  # the second life continues from the checkpoint of step 5
        hub = TrackerHub(config(), run_folder, step=first)
        for step in range(first + 1, last + 1):
            hub.log(step, "train", {"reward": 0.1})
        hub.finish(0)
    inits = fake_wandb.calls("init")
    assert [call["call"] for call in fake_wandb.calls() if call["call"] != "log"] == ["init", "finish", "init", "finish"]
    assert inits[0]["id"] == inits[1]["id"] == run_folder.load("trackers")["wandb"]
    assert {call["group"] for call in inits} == {"mysweep"} and {call["resume"] for call in inits} == {"allow"}
    assert [call["metrics"]["step"] for call in fake_wandb.calls("log")] == [*range(1, 8), *range(6, 11)]
    assert [call["exit_code"] for call in fake_wandb.calls("finish")] == [0, 0]


@pytest.mark.cases("S55")
def test_two_runs_have_two_ids(fake_wandb: Any, run_folder: Any, tmp_path: Path) -> None:
    other = type(run_folder)(tmp_path / "other")
    other.path.mkdir()
    for folder in (run_folder, other):
        TrackerHub(config(), folder).finish(0)
    first, second = fake_wandb.calls("init")
    assert first["id"] != second["id"]
    assert [call["call"] for call in fake_wandb.calls()] == ["init", "finish", "init", "finish"]


@pytest.mark.cases("S56")
def test_a_tracker_that_raises_warns_once_per_kind_and_stops_nothing(fake_wandb: Any, run_folder: Any, caplog: pytest.LogCaptureFixture) -> None:
    fake_wandb.plan(log_2="raise", log_3="raise", finish="raise")
    with caplog.at_level(logging.WARNING, logger="rlexp"):
        hub = TrackerHub(config(), run_folder)
        for step in range(1, 6):
            hub.log(step, "train", {"reward": 0.1})
        hub.finish(0)
    assert [record.getMessage() for record in caplog.records] == [
        "tracker wandb: log raised ConnectionError: network is down (the run goes on)",
        "tracker wandb: finish raised ConnectionError: network is down (the run goes on)",
    ]
    assert [call["metrics"]["step"] for call in fake_wandb.calls("log")] == [1, 4, 5]


def test_a_tracker_that_cannot_start_is_left_alone(fake_wandb: Any, run_folder: Any, caplog: pytest.LogCaptureFixture) -> None:
    fake_wandb.plan(init="raise")
    with caplog.at_level(logging.WARNING, logger="rlexp"):
        hub = TrackerHub(config(), run_folder)
        hub.log(1, "train", {"reward": 0.1})
        hub.finish(0)
    assert [record.getMessage() for record in caplog.records] == ["tracker wandb: start raised ConnectionError: network is down (nothing is sent to it)"]
    assert fake_wandb.calls() == []


HANGING = """
import atexit, logging, sys, time
from pathlib import Path
from run_configs import composed
from rlexp.tracking.journal import Journal
from tracker_fakes import Folder

logging.basicConfig(level=logging.WARNING)
folder = Folder(Path(sys.argv[1]))
atexit.register(time.sleep, 60)  # wandb's own exit handler waits for its uploads
journal = Journal(composed("tracker=[wandb]", "tracker.timeout=1.5"), folder, 6)
for step in range(1, 7):
    journal.log(step, "train", {"reward": 0.1}, 0.0)
    time.sleep(0.02)
journal.finish(0, {"status": "finished", "steps": 6, "seconds": 1.0})
"""


@pytest.mark.cases("S56")
def test_a_tracker_that_hangs_delays_the_end_by_its_deadline_at_most(fake_wandb: Any, run_folder: Any) -> None:
    fake_wandb.plan(log_2="raise", log_3=60, finish="raise")
    path = os.pathsep.join([str(fake_wandb.package), str(Path(__file__).parents[1])])
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(run_folder.path)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert time.monotonic() - started < 10
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert (
        len(warnings) == 3 and "log raised ConnectionError" in warnings[0] and "log has not answered for 1.5 s" in warnings[1] and "left behind" in warnings[2]
    )
    assert len((run_folder.path / "metrics.jsonl").read_text().splitlines()) == 6


def test_tensorboard_hides_what_an_earlier_life_wrote_after_the_checkpoint(run_folder: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last, value in ((0, 7, 1.0), (5, 10, 2.0)):
        hub = TrackerHub(composed("tracker=[tensorboard]", "tracker.timeout=60"), run_folder, step=first)
        for step in range(first + 1, last + 1):
            hub.log(step, "train", {"reward": value})
        hub.finish(0)
    events = EventAccumulator(str(run_folder.path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [
        *((step, 1.0) for step in range(1, 6)),
        *((step, 2.0) for step in range(6, 11)),
    ]


REAL = """
import sys
from pathlib import Path
from run_configs import composed
from rlexp.tracking.hub import TrackerHub
from tracker_fakes import Folder

hub = TrackerHub(composed("tracker=[wandb]", "tracker.terms.wandb.mode=offline", "tracker.timeout=60"), Folder(Path(sys.argv[1])))
hub.log(1, "train", {"reward": 0.5})
hub.log(1, "eval", {"accuracy": 0.25})
hub.finish(0)
"""


def test_real_wandb_offline(run_folder: Any) -> None:
    path = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(run_folder.path)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0 and "tracker wandb" not in done.stderr, done.stderr
    (file,) = (run_folder.path / "wandb").glob("offline-run-*/*.wandb")
    contents = file.read_bytes()
    assert file.stem == f"run-{run_folder.load('trackers')['wandb']}"
    assert b"eval/accuracy" in contents and b"0.25" in contents and b"reward" in contents
