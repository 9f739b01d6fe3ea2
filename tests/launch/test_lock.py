"""The lock of a run folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from rlexp.launch.lock import FolderLock, Held, Holder, born, current, is_alive


@pytest.fixture
def other() -> Iterator[subprocess.Popen]:
    """A live process that is not this one."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def write(folder: Path, holder: Holder | str) -> None:
    (folder / "lock").write_text(holder if isinstance(holder, str) else json.dumps(asdict(holder)))


def test_taken_and_given_back(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert json.loads((tmp_path / "lock").read_text()) == {"host": socket.gethostname(), "pid": os.getpid(), "born": born(os.getpid()), "job": ""}
    lock.release()
    assert list(tmp_path.iterdir()) == []
    lock.release()  # nothing to give back


def test_a_live_process_keeps_it(tmp_path: Path, other: subprocess.Popen) -> None:
    write(tmp_path, Holder(socket.gethostname(), other.pid, born(other.pid)))
    with pytest.raises(Held, match=f"in use by process {other.pid} on {socket.gethostname()}"):
        FolderLock(tmp_path).acquire()
    FolderLock(tmp_path).release()  # not ours, so it stays
    assert (tmp_path / "lock").exists()
    other.kill()
    other.wait()
    FolderLock(tmp_path).acquire()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_pid_that_was_used_again_is_not_the_holder(tmp_path: Path, other: subprocess.Popen) -> None:
    write(tmp_path, Holder(socket.gethostname(), other.pid, born(other.pid) - 1))
    FolderLock(tmp_path).acquire()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_another_host_cannot_be_judged(tmp_path: Path) -> None:
    write(tmp_path, Holder("elsewhere.example", 1, 0))
    with pytest.raises(Held, match="process 1 on elsewhere"):
        FolderLock(tmp_path).acquire()


SQUEUE = """#!/bin/sh
for word; do case $word in
--jobs=7) echo RUNNING; exit;;
--jobs=8) exit;;
--jobs=9) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;
esac; done
echo "Unable to contact slurm controller" >&2
exit 1
"""


def test_slurm_knows_whether_the_job_of_another_host_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run whose node died could never go on anywhere else."""
    (tmp_path / "squeue").write_text(SQUEUE)
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def alive(job: str) -> bool:
        return Holder("elsewhere.example", 1, 0, job).alive

    assert [alive(job) for job in ("", "7", "8", "9", "10")] == [True, True, False, False, True]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert alive("7"), "several runs may share a job that the user made"
    monkeypatch.setenv("RLEXP_SLURM_JOB", "5_2")
    assert not alive("7") and current().job == "7", "a requeued job has one life at a time"


def test_a_lock_without_contents_is_respected_for_a_moment(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(Held, match="just starting"):
        FolderLock(tmp_path).acquire()
    long_ago = time.time() - 60
    os.utime(tmp_path / "lock", (long_ago, long_ago))
    FolderLock(tmp_path).acquire()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 10
    while is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(process.pid)  # ended, but nobody has waited for it yet
    process.wait()
    assert current().alive


def test_of_many_that_find_a_dead_holder_one_wins(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(tmp_path, Holder(socket.gethostname(), gone.pid, 1))
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom rlexp.launch.lock import FolderLock, Held\n"
        "sys.stdin.readline()\n"
        "try:\n    FolderLock(Path(sys.argv[1])).acquire()\n    print('won', flush=True)\n    sys.stdin.readline()\n"
        "except Held:\n    print('held', flush=True)\n"
    )
    racers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    words = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
    for racer in racers:
        racer.communicate("end\n")
    assert sorted(words) == ["held", "held", "held", "won"]
