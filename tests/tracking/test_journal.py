"""Files are written behind training's back: the same bytes, in order, and errors come to the front."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_configs import composed

from rlexp.config.errors import UserError
from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS, Turn
from rlexp.tracking import journal as journal_module
from rlexp.tracking.journal import Journal
from rlexp.tracking.jsonl import JsonlLog, read_lines
from rlexp.tracking.rollouts import write_rollouts
from rlexp.tracking.writer import MOST_WAITING, Writer

WAIT = 10.0
"""seconds; a deadline, never reached"""


def rollouts(count: int = 3) -> list[Rollout]:
    made = []
    for number in range(count):
        turn = Turn(np.array([1, 2]), np.array([3, number]), np.array([-1.0, -0.5], np.float32), EOS, version=4)
        made.append(Rollout({"prompt": "p"}, (0, number, "policy"), 0, turns=[turn], rewards={"digits": 0.5}, reward=0.5, advantage=0.25, extra={"note": "a"}))
    return made


def test_what_is_written_does_not_depend_on_who_writes_it(run_folder: Any, tmp_path: Path) -> None:
    journal = Journal(composed("tracker.rollout_steps=1"), run_folder, 3)
    plain = JsonlLog(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        journal.log(step, "train", {"reward": step / 3, "note": float("nan")}, step / 7)
        journal.rollouts(step, "train", rollouts(step))
        plain.log(step, "train", {"reward": step / 3, "note": float("nan")}, step / 7)
        write_rollouts(tmp_path, step, "train", rollouts(step))
    assert journal.flush() == plain.offset() == (run_folder.path / "metrics.jsonl").stat().st_size
    journal.log(3, "eval", {"reward": 1.0}, 2.0)
    journal.finish(0, {"status": "finished", "steps": 3, "seconds": 1.0})
    plain.log(3, "eval", {"reward": 1.0}, 2.0)
    for name in ("metrics.jsonl", "rollouts/step_000001.parquet", "rollouts/step_000002.parquet"):
        assert (run_folder.path / name).read_bytes() == (tmp_path / name).read_bytes()


def test_what_changes_later_is_not_written(run_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(journal_module, "write_rollouts", lambda *arguments: go.wait(WAIT) and write_rollouts(*arguments))
    journal, mine, metrics = Journal(composed(), run_folder, 3), rollouts(), {"reward": 1.0}
    journal.rollouts(1, "train", mine)
    journal.log(1, "train", metrics, 0.0)
    metrics["reward"] = 2.0
    for rollout in mine:
        rollout.reward, rollout.advantage, rollout.rewards["digits"], rollout.extra["note"] = 7.0, 7.0, 7.0, "b"
    assert read_lines(run_folder.path / "metrics.jsonl") == [], "the line waits behind the rollouts"
    go.set()
    journal.finish(0)
    assert read_lines(run_folder.path / "metrics.jsonl")[0]["reward"] == 1.0
    assert (run_folder.path / "rollouts" / "step_000001.parquet").read_bytes() == write_rollouts(tmp_path, 1, "train", rollouts()).read_bytes()


def test_a_failed_write_raises_at_the_next_call_and_once(run_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "rollouts/step_000001.parquet")

    monkeypatch.setattr(journal_module, "write_rollouts", full)
    for call in ("log", "rollouts", "flush", "finish"):
        journal = Journal(composed(), run_folder, 3)
        journal.rollouts(1, "train", rollouts())
        calls: dict[str, Callable[[], Any]] = {"log": partial(journal.log, 2, "train", {}, 0.0), "rollouts": partial(journal.rollouts, 2, "eval", [])}
        calls |= {"flush": journal.flush, "finish": partial(journal.finish, 1)}
        with pytest.raises(OSError, match="No space left") as caught:
            deadline = time.monotonic() + WAIT
            calls[call]()
            while call in ("log", "rollouts") and time.monotonic() < deadline:  # the next one after the write was tried
                calls[call]()
        assert caught.value.errno == errno.ENOSPC and caught.value.filename == "rollouts/step_000001.parquet"
        journal.finish(1)
        assert read_lines(run_folder.path / "metrics.jsonl") == [], "nothing is written behind a hole"


def test_a_failed_write_still_closes_trackers_and_console(run_folder: Any, fake_wandb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "write_rollouts", lambda *_: 1 / 0)
    journal = Journal(composed("tracker=[wandb]"), run_folder, 3)
    journal.rollouts(1, "train", rollouts())
    with pytest.raises(ZeroDivisionError):
        journal.finish(1)
    assert [call["exit_code"] for call in fake_wandb.calls("finish")] == [1]


def test_writes_keep_their_order_and_a_slow_disk_slows_the_run(tmp_path: Path) -> None:
    writer, go, made = Writer(tmp_path), threading.Event(), list[Any]()
    writer.put(partial(go.wait, WAIT))
    for number in range(MOST_WAITING):
        writer.put(partial(made.append, number))
    ahead = threading.Thread(target=writer.put, args=(partial(made.append, "late"),), daemon=True)
    ahead.start()
    ahead.join(0.05)
    assert ahead.is_alive() and made == []
    go.set()
    ahead.join(WAIT)
    writer.close()
    assert made == [*range(MOST_WAITING), "late"] and not writer._thread.is_alive()


def test_a_disk_that_hangs_ends_the_run(tmp_path: Path) -> None:
    hangs = threading.Event()
    writer = Writer(tmp_path, patience=0.05)
    writer.put(hangs.wait)
    with pytest.raises(UserError, match=r"nothing could be written to .* for 0\.05 s"):
        writer.flush()
    with pytest.raises(UserError, match="nothing could be written"):
        writer.put(print)
    writer.close()  # has been said, and is not waited for again
    hangs.set()
