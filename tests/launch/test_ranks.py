"""Rank processes: real ones, with little programs instead of a trainer."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_configs import default_with

import rlexp.launch.folder as folder_module
from rlexp.config.errors import UserError
from rlexp.launch.failure import Failure, failure_of
from rlexp.launch.folder import RunFolder
from rlexp.launch.lock import FolderLock, is_alive
from rlexp.launch.opening import open_folder
from rlexp.launch.ranks import run_ranks
from rlexp.launch.signals import PREEMPTED_CODE, StopRequest, handling
from rlexp.launch.start import carry_out

PRELUDE = "import os, sys, time, signal\nfrom pathlib import Path\nrank, folder = int(os.environ['RANK']), Path(sys.argv[1])\n"
GUARDED = "from rlexp.launch.folder import RunFolder\nfrom rlexp.launch.worker import guarded_rank\nfrom rlexp.config.errors import UserError\n"


def program(folder: Path, body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + body, str(folder)]


def guarded(folder: Path, body: str) -> list[str]:
    """A rank as rlexp.launch.worker runs it, with `work` instead of a trainer."""
    return program(folder, f"{GUARDED}def work():\n{body}\nsys.exit(guarded_rank(RunFolder(folder), rank, work))")


def ranks(folder: Path, command: list[str], world: int = 2) -> tuple[int, Failure | None]:
    with handling() as stop:
        return run_ranks(command, world, folder / "ranks", stop)


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_rank_finds_its_place(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    body = f"(folder / f'{{rank}}.txt').write_text(' '.join(os.environ[name] for name in {names}))"
    assert ranks(tmp_path, program(tmp_path, body), world=3) == (0, None)
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(3)] == [f"{rank} {rank} 3 3 127.0.0.1" for rank in range(3)]


@pytest.mark.rows("GRPO-181")
def test_ranks_meet_on_a_free_port_of_their_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that everybody takes (TRL: 12345 unless MASTER_PORT says otherwise) would join the ranks of two runs."""
    monkeypatch.setenv("MASTER_ADDR", "somewhere.else")
    monkeypatch.setenv("MASTER_PORT", "12345")
    body = "(folder / f'{rank}.txt').write_text(os.environ['MASTER_ADDR'] + ':' + os.environ['MASTER_PORT'])"
    assert ranks(tmp_path, program(tmp_path, body)) == (0, None)
    met = {(tmp_path / f"{rank}.txt").read_text() for rank in range(2)}
    (place,) = met
    assert place.startswith("127.0.0.1:") and not place.endswith(":12345")


def test_a_rank_that_raises_ends_all_and_is_named(tmp_path: Path) -> None:
    body = "    if rank == 1:\n        time.sleep(0.3)\n        raise ValueError('bad weights')\n    time.sleep(60)"
    started = time.monotonic()
    code, failure = ranks(tmp_path, guarded(tmp_path, body))
    assert time.monotonic() - started < 10
    assert code == 1 and failure is not None
    assert failure.reason == "rank 1: ValueError: bad weights" and not failure.expected and "in work" in failure.traceback


def test_the_first_failure_counts_not_the_complaints_about_it(tmp_path: Path) -> None:
    body = "    if rank == 2:\n        raise ValueError('the cause')\n    time.sleep(0.3)\n    raise RuntimeError('connection closed by peer')"
    _, failure = ranks(tmp_path, guarded(tmp_path, body), world=3)
    assert failure is not None and failure.reason == "rank 2: ValueError: the cause"


def test_who_fails_because_of_another_rank_names_that_one(tmp_path: Path) -> None:
    body = """
    from rlexp.config.errors import PeerError
    if rank == 1:
        time.sleep(0.3)
        raise UserError('bad')
    raise PeerError(1, 'bad')
"""
    _, failure = ranks(tmp_path, guarded(tmp_path, body))
    assert failure is not None and failure.reason == "rank 1: bad" and failure.expected


def test_an_error_of_the_user_stays_one_message(tmp_path: Path) -> None:
    _, failure = ranks(tmp_path, guarded(tmp_path, "    raise UserError('data.path: no such file')"))
    assert failure is not None and failure.expected and failure.reason.endswith("data.path: no such file")


def test_a_rank_that_is_killed_ends_all(tmp_path: Path) -> None:
    body = """
    if rank == 1:
        print('last words', flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    raise RuntimeError('peer is gone')
"""
    code, failure = ranks(tmp_path, guarded(tmp_path, body))
    assert code == 1 and failure is not None
    assert failure.reason == "rank 1 was killed by SIGKILL (out of memory?)" and "last words" in failure.traceback


def test_children_of_ranks_do_not_survive_them(tmp_path: Path) -> None:
    body = """
import subprocess
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
(folder / f'child_{rank}').write_text(str(child.pid))
if rank == 0:
    while not (folder / 'child_1').exists(): time.sleep(0.02)
    sys.exit(3)
time.sleep(60)
"""
    code, failure = ranks(tmp_path, program(tmp_path, body))
    assert code == 1 and failure is not None and failure.reason == "rank 0 exited with code 3"
    for rank in range(2):
        orphan = int((tmp_path / f"child_{rank}").read_text())
        wait_for(lambda: not is_alive(orphan))  # noqa: B023


PARENT = """
import json, sys
from pathlib import Path
from rlexp.launch.ranks import run_ranks
from rlexp.launch.signals import handling
with handling() as stop:
    code, failure = run_ranks(json.loads(sys.argv[2]), 2, Path(sys.argv[1]) / 'ranks', stop)
print(code, failure, stop.reason)
"""


def parent_of(folder: Path, command: list[str]) -> subprocess.Popen:
    arguments = [sys.executable, "-c", PARENT, str(folder), json.dumps(command)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_signals_are_passed_on_and_preemption_is_no_failure(tmp_path: Path) -> None:
    body = """
    from rlexp.launch.signals import stop_request
    (folder / f'ready_{rank}').touch()
    while not stop_request().requested: time.sleep(0.01)
    (folder / f'saved_{rank}').touch()
    return 75
"""
    process = parent_of(tmp_path, guarded(tmp_path, body))
    wait_for(lambda: all((tmp_path / f"ready_{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "75 None stopped by SIGTERM\n"
    assert all((tmp_path / f"saved_{rank}").exists() for rank in range(2))


def test_a_signal_before_the_ranks_can_handle_it_is_no_failure(tmp_path: Path) -> None:
    process = parent_of(tmp_path, program(tmp_path, "(folder / f'ready_{rank}').touch()\ntime.sleep(60)"))
    wait_for(lambda: all((tmp_path / f"ready_{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "75 None stopped by SIGTERM\n"


def test_kill_9_of_the_parent_ends_the_ranks(tmp_path: Path) -> None:
    body = """
from rlexp.launch.watch import follow_parent
follow_parent(lambda: os.killpg(os.getpgrp(), signal.SIGKILL))
(folder / f'{rank}').write_text(str(os.getpid()))
time.sleep(60)
"""
    process = parent_of(tmp_path, program(tmp_path, body))
    wait_for(lambda: all((tmp_path / str(rank)).exists() and (tmp_path / str(rank)).read_text() for rank in range(2)))
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    process.kill()
    process.communicate()
    wait_for(lambda: not any(is_alive(pid) for pid in pids), 5.0)


@pytest.fixture
def folder(outputs: Path) -> RunFolder:
    """The folder of a run that just began."""
    return open_folder(default_with(), [])


@pytest.mark.parametrize(
    ("work", "code", "state", "reason"),
    [
        (lambda stop: (0, None), 0, "finished", None),
        (lambda stop: (PREEMPTED_CODE, None), 75, "preempted", "stopped"),
        (lambda stop: (1, Failure("rank 1 was killed by SIGKILL", "", False)), 1, "failed", "rank 1 was killed by SIGKILL"),
        (lambda stop: 1 / 0, 1, "failed", "ZeroDivisionError: division by zero"),
    ],
)
def test_the_status_is_truthful(folder: RunFolder, work: Callable, code: int, state: str, reason: str | None) -> None:
    assert carry_out(folder, StopRequest(), work) == code
    status = folder.status()
    assert (status["status"], status.get("reason"), status["exit_code"]) == (state, reason, code) and status["ended"] >= status["started"]


def test_messages_and_tracebacks_go_where_they_belong(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(stop: StopRequest) -> tuple[int, Failure | None]:
        raise UserError("data.path: no such file")

    folder.metrics_path.touch()
    carry_out(folder, StopRequest(), wrong)
    assert capsys.readouterr().err == "error: data.path: no such file\n"
    assert "Traceback" in folder.log_path.read_text() and "in wrong" in folder.log_path.read_text()

    carry_out(folder, StopRequest(), lambda stop: [][1])  # type: ignore[index, misc]
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.endswith("error: IndexError: list index out of range\n")


def test_what_is_wrong_before_anything_is_trained_leaves_no_folder(folder: RunFolder) -> None:
    assert carry_out(folder, StopRequest(), lambda stop: (1, Failure("rank 1: data.path: no such file", "", True))) == 1
    assert not folder.path.exists() and folder.path.parent.is_dir()


def test_a_continued_run_is_never_removed(folder: RunFolder) -> None:
    FolderLock(folder.path).release()
    again = open_folder(default_with(), [])
    assert carry_out(again, StopRequest(), lambda stop: (1, Failure("data.path: no such file", "", True))) == 1
    assert again.status()["status"] == "failed"


def test_a_full_disk_is_one_message_and_loses_nothing(folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder.metrics_path.touch()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(folder_module, "write_json", full)  # a disk that is full for everything
    assert carry_out(folder, StopRequest(), full) == 1  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith("error: no space left on the disk (while writing metrics.jsonl): free some, then run the same command")
    assert folder.status()["status"] == "running"  # and its pid tells that it is not
    assert failure_of(OSError(errno.EACCES, "Permission denied")).expected is False
