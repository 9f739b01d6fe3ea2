"""Which folder a command means."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from run_configs import default_with

from rlexp.config.errors import UserError
from rlexp.config.saved import load_config
from rlexp.launch.folder import FAILED, FINISHED, PREEMPTED, RunFolder
from rlexp.launch.lock import FolderLock, Holder, born
from rlexp.launch.opening import check_before_start, open_folder

NAME = "addition-grpo-dapo-tiny-s42"


def release(folder: RunFolder) -> RunFolder:
    FolderLock(folder.path).release()
    return folder


def run_once(name: str | None = None, state: str = FINISHED, checkpoint: bool = True) -> RunFolder:
    """A run of the default config that began and ended after 150 steps."""
    folder = open_folder(default_with(run__name=name), [])
    folder.write_status(state)
    folder.write_summary({"status": state, "steps": 150})
    folder.metrics_path.write_text('{"step": 1, "split": "train", "time_s": 0.1}\n')
    if checkpoint:
        (folder.checkpoints_path / "step_000010").mkdir()
        (folder.checkpoints_path / "latest").symlink_to("step_000010")
    return release(folder)


@pytest.fixture
def somebody() -> Iterator[subprocess.Popen]:
    """A live process."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def hold(path: Path, process: subprocess.Popen) -> None:
    (path / "lock").write_text(json.dumps(asdict(Holder(socket.gethostname(), process.pid, born(process.pid)))))


def test_a_new_run(outputs: Path) -> None:
    folder = open_folder(default_with(loss__epsilon=0.3), ["loss.epsilon=0.3"])
    assert folder.path == outputs / NAME and not folder.finished and folder.latest_checkpoint is None
    assert load_config(folder.config_path) == default_with(loss__epsilon=0.3)
    assert (folder.path / "overrides.txt").read_text() == "loss.epsilon=0.3\n"
    status = folder.status()
    assert (status["status"], status["pid"], status["host"]) == ("running", os.getpid(), socket.gethostname())
    assert status["versions"]["torch"].startswith("2.") and len(status["fingerprint"]) == 16
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "config.yaml", "lock", "overrides.txt", "rollouts", "status.json"]


@pytest.mark.parametrize("state", ["running", FAILED, PREEMPTED])
def test_an_unfinished_run_continues(outputs: Path, state: str) -> None:
    run_once(state=state)
    folder = open_folder(default_with(tracker__steps=3, run__resume="must"), ["tracker.steps=3"])
    assert folder.path == outputs / NAME and not folder.finished
    assert folder.latest_checkpoint == outputs / NAME / "checkpoints" / "step_000010"
    assert folder.status()["status"] == "running" and folder.metrics_path.exists()
    assert load_config(folder.config_path).tracker.steps == 3


def test_a_finished_run_says_so_and_is_not_touched(outputs: Path) -> None:
    before = run_once().path
    contents = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    folder = open_folder(default_with(), [])
    assert folder.finished
    assert {path: path.read_bytes() for path in before.rglob("*") if path.is_file() and path.name != "lock"} == contents


def test_more_steps_continue_a_finished_run(outputs: Path) -> None:
    run_once()
    folder = open_folder(default_with(trainer__max_steps=300), ["trainer.max_steps=300"])
    assert not folder.finished and folder.status()["status"] == "running" and "ended" not in folder.status()
    assert load_config(folder.config_path).trainer.max_steps == 300


def test_more_steps_need_a_checkpoint(outputs: Path) -> None:
    path = run_once(checkpoint=False).path
    with pytest.raises(UserError, match=r"kept no checkpoint.*run\.resume=never"):
        open_folder(default_with(trainer__max_steps=300), [])
    assert not (path / "lock").exists()


def test_another_configuration_is_refused(outputs: Path) -> None:
    run_once(state=FAILED)
    with pytest.raises(UserError) as caught:
        open_folder(default_with(loss__epsilon=0.3, data__digits=1), [])
    text = str(caught.value)
    assert "data.digits: 2 -> 1" in text and "loss.epsilon: 0.2 -> 0.3" in text and f"run.name={NAME}-b" in text and "run.resume=never" in text
    assert load_config(outputs / NAME / "config.yaml") == default_with() and not (outputs / NAME / "lock").exists()


def test_never_moves_the_old_run_away(outputs: Path) -> None:
    for place in (1, 2):
        release(open_folder(default_with(run__resume="never", loss__epsilon=0.1 * place), []))
        (outputs / NAME / "metrics.jsonl").write_text(f"run {place}")
    release(open_folder(default_with(run__resume="never"), []))
    assert sorted(path.name for path in outputs.iterdir()) == [NAME, f"{NAME}.old-1", f"{NAME}.old-2"]
    assert [(outputs / f"{NAME}.old-{place}" / "metrics.jsonl").read_text() for place in (1, 2)] == ["run 1", "run 2"]
    assert not (outputs / NAME / "metrics.jsonl").exists() and list(outputs.glob("*/lock")) == []


def test_never_does_not_move_a_run_that_is_going_on(outputs: Path, somebody: subprocess.Popen) -> None:
    hold(run_once("mine", state="running").path, somebody)
    with pytest.raises(UserError, match="is in use by process"):
        open_folder(default_with(run__name="mine", run__resume="never"), [])
    assert [path.name for path in outputs.iterdir()] == ["mine"]


def test_must_wants_a_run(outputs: Path) -> None:
    with pytest.raises(UserError, match=r"run\.resume=must, but there is no run to continue"):
        open_folder(default_with(run__resume="must"), [])
    assert not outputs.exists()


def test_a_held_folder_gets_a_number_unless_its_name_was_given(outputs: Path, somebody: subprocess.Popen) -> None:
    hold(run_once(state="running").path, somebody)
    second = open_folder(default_with(), [])
    assert second.path == outputs / f"{NAME}-2"
    hold(second.path, somebody)
    assert open_folder(default_with(loss__epsilon=0.3), []).path == outputs / f"{NAME}-3"

    hold(run_once("mine", state="running").path, somebody)
    with pytest.raises(UserError, match=rf"mine is in use by process {somebody.pid}.*run\.name"):
        open_folder(default_with(run__name="mine"), [])


def test_the_run_of_a_process_that_was_killed_continues(outputs: Path, somebody: subprocess.Popen) -> None:
    folder = run_once(state="running")
    hold(folder.path, somebody)
    somebody.kill()
    somebody.wait()
    assert open_folder(default_with(), []).path == outputs / NAME


def test_killed_before_the_config_was_written(outputs: Path) -> None:
    (outputs / NAME).mkdir(parents=True)
    (outputs / NAME / ".config.yaml.abc.tmp").write_text("half")
    assert open_folder(default_with(), []).path == outputs / NAME


def test_somebody_elses_folder_is_not_used(outputs: Path) -> None:
    (outputs / "photos").mkdir(parents=True)
    (outputs / "photos" / "cat.jpg").write_text("")
    with pytest.raises(UserError, match="is not a run folder"):
        open_folder(default_with(run__name="photos"), [])
    assert [path.name for path in (outputs / "photos").iterdir()] == ["cat.jpg"]


def test_a_job_of_a_sweep_lives_in_the_sweep(outputs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLEXP_SWEEP_DIR", str(tmp_path / "mysweep"))
    monkeypatch.setenv("RLEXP_SWEEP_JOB", "loss=dapo-abc123")
    folder = open_folder(default_with(run__name="ignored"), [])
    assert folder.path == tmp_path / "mysweep" / "loss=dapo-abc123" and folder.sweep == "mysweep"


def test_threads_are_kept_and_a_change_is_told(outputs: Path) -> None:
    folder = open_folder(default_with(), [])
    assert folder.record_threads(2) is None and folder.record_threads(2) is None
    warning = folder.record_threads(4)
    assert warning is not None and "2 CPU threads and goes on with 4" in warning


def test_small_values_outlive_the_process(outputs: Path) -> None:
    folder = open_folder(default_with(), [])
    assert folder.load("trackers") is None
    folder.store("trackers", {"wandb": "abc"})
    folder.store("other", 1)
    assert RunFolder(folder.path).load("trackers") == {"wandb": "abc"}


def test_a_start_that_is_gone_is_refused_unless_the_run_has_its_own_checkpoint(outputs: Path) -> None:
    config = default_with(run__start_from="gone")
    with pytest.raises(UserError, match=r"run\.start_from=gone is no folder"):
        check_before_start(config)
    run_once()
    check_before_start(config)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_root_that_cannot_be_written(outputs: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (outputs.parent / "file").touch()
    monkeypatch.setenv("RLEXP_OUTPUTS", str(outputs.parent / "file" / below))
    with pytest.raises(UserError, match=r"the run folder .* cannot be written \(Not a directory\).*RLEXP_OUTPUTS"):
        open_folder(default_with(), [])
