"""Files, messages, threads, versions."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_configs import default_with

from rlexp.launch.files import read_json, write_json, write_text
from rlexp.launch.log import logging_to
from rlexp.launch.threads import cores, thread_count
from rlexp.launch.versions import git_commit, versions


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1} and path.stat().st_mode & 0o777 == 0o644

    def fails(source: object, target: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no space"):
        write_text(path, "half")
    assert read_json(path) == {"a": 1} and [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_messages_go_to_the_file_and_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for life in (1, 2):
        with logging_to(tmp_path / "train.log"):
            logging.getLogger("rlexp.some.room").info("life %d", life)
            logging.getLogger("rlexp.some.room").warning("careful")
    logging.getLogger("rlexp.some.room").info("after the end")
    assert capsys.readouterr().err == "life 1\nwarning: careful\nlife 2\nwarning: careful\n"
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        f"{level} rlexp.some.room: {text}" for text, level in (("life 1", "INFO"), ("careful", "WARNING"), ("life 2", "INFO"), ("careful", "WARNING"))
    ]
    with logging_to(tmp_path / "quiet.log", console=False):
        logging.getLogger("rlexp").warning("to the file only")
    assert capsys.readouterr().err == ""


def test_a_crash_in_native_code_leaves_the_python_stack(tmp_path: Path) -> None:
    code = """
import faulthandler, sys
from pathlib import Path
from rlexp.launch.log import logging_to
def training_step():
    faulthandler._sigsegv()
with logging_to(Path(sys.argv[1])):
    training_step()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "train.log")], capture_output=True, check=False)
    assert done.returncode < 0 and "training_step" in (tmp_path / "train.log").read_text()


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = default_with()
    assert thread_count(config, 1) == cores() >= 1 and thread_count(config, 1000) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count(config, 2) == 3
    assert thread_count(default_with(trainer__threads=5), 2) == 5


def test_versions_without_importing_anything() -> None:
    code = "import sys; from rlexp.launch.versions import versions; print(versions()['torch']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == versions()["torch"]
    commit = git_commit()
    assert commit is None or len(commit.removesuffix("+changes")) == 40
