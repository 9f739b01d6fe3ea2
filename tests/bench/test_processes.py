"""A measured process answers, says why it failed, and is gone afterwards."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from scripts.bench.processes import ENVIRONMENT, BenchError, Side, once


def environment(pipe: Connection, name: str) -> None:
    """What a child sees."""
    print("a child")
    pipe.send(os.environ.get(name))


def broken(pipe: Connection) -> None:
    """A child that fails."""
    raise RuntimeError("no such thing")


def turns(pipe: Connection) -> None:
    """A child that answers until it is told to stop."""
    while (command := pipe.recv()) != "stop":
        pipe.send({"did": command})


def test_one_answer(tmp_path: Path) -> None:
    assert once("child", f"{__name__}:environment", tmp_path / "log", "OMP_NUM_THREADS") == ENVIRONMENT["OMP_NUM_THREADS"]
    assert (tmp_path / "log").read_text() == "a child\n"


def test_a_failure_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"(?s)child ended early .*no such thing"):
        once("child", f"{__name__}:broken", tmp_path / "log")


def test_turns(tmp_path: Path) -> None:
    side = Side("child", f"{__name__}:turns", tmp_path / "log")
    assert side.turn() == {"did": "step"} and side.turn(("profile", "x")) == {"did": ("profile", "x")}
    side.stop()
    assert not side.process.is_alive()
