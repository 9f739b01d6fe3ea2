"""Ranks of several nodes, without Slurm: the nodes are processes of this machine that meet at its loopback address."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import wait_for

from rlexp.config.errors import UserError
from rlexp.launch import hosts
from rlexp.launch.failure import Failure
from rlexp.launch.files import read_json
from rlexp.launch.follower import follow
from rlexp.launch.lock import is_alive
from rlexp.launch.meeting import FILE, Meeting
from rlexp.launch.ranks import run_ranks
from rlexp.launch.signals import handling

FOLLOWER = "import sys\nfrom pathlib import Path\nfrom rlexp.launch.follower import follow\nsys.exit(follow(Path(sys.argv[1]), int(sys.argv[2])))"
PRELUDE = "import os, sys, time, signal\nfrom pathlib import Path\nrank, folder = int(os.environ['RANK']), Path(sys.argv[1])\n"
FOLLOWS = "from rlexp.launch.watch import follow_parent\nfollow_parent(lambda: os.killpg(os.getpgrp(), signal.SIGKILL))\n"
GUARDED = f"{FOLLOWS}from rlexp.launch.folder import RunFolder\nfrom rlexp.launch.worker import guarded_rank\n"


def program(folder: Path, body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + body, str(folder)]


def guarded(folder: Path, body: str) -> list[str]:
    """A rank as rlexp.launch.worker runs it, with `work` instead of a trainer."""
    return program(folder, f"{GUARDED}def work():\n{body}\nsys.exit(guarded_rank(RunFolder(folder), rank, work))")


class Job:
    """Two nodes: this process, and another that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meeting = Meeting(folder / "meeting", "127.0.0.1", 1)
        self.other = subprocess.Popen([sys.executable, "-c", FOLLOWER, str(folder / "meeting"), "1"], stdin=subprocess.DEVNULL)

    def run(self, command: list[str]) -> tuple[int, Failure | None]:
        """Two ranks on each node."""
        with handling() as stop:
            return run_ranks(command, 4, self.folder / "ranks", stop, nodes=2, meeting=self.meeting)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.meeting.close()
    made.other.kill()
    made.other.wait()


@pytest.mark.rows("GRPO-177", "GRPO-179", "GRPO-180")
def test_every_rank_finds_its_place(job: Job, tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    body = f"(folder / f'{{rank}}.txt').write_text(' '.join(os.environ[name] for name in {names}))"
    assert job.run(program(tmp_path, body)) == (0, None)
    places = [f"{rank} {rank % 2} {rank // 2} 4 2 127.0.0.1" for rank in range(4)]
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(4)] == places
    assert job.other.wait(20) == 0, "the other node is sent home"


def test_a_rank_of_the_other_node_that_raises_is_named(job: Job, tmp_path: Path) -> None:
    body = "    if rank == 3:\n        time.sleep(0.3)\n        raise ValueError('bad weights')\n    time.sleep(60)"
    began = time.monotonic()
    code, failure = job.run(guarded(tmp_path, body))
    assert code == 1 and failure is not None and failure.reason == "rank 3: ValueError: bad weights" and "in work" in failure.traceback
    assert job.other.wait(20) == 0 and time.monotonic() - began < 30


def test_a_rank_of_the_other_node_that_is_killed(job: Job, tmp_path: Path) -> None:
    body = """
    if rank == 2:
        print('last words', flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f'{rank}').write_text(str(os.getpid()))
    time.sleep(60)
"""
    code, failure = job.run(guarded(tmp_path, body))
    assert code == 1 and failure is not None
    assert failure.reason == "rank 2 was killed by SIGKILL (out of memory?)" and "last words" in failure.traceback
    job.other.wait(20)
    assert not any(is_alive(int((tmp_path / str(rank)).read_text())) for rank in (0, 1, 3) if (tmp_path / str(rank)).exists())


def test_a_node_that_is_gone(job: Job, tmp_path: Path) -> None:
    body = f"""
    (folder / f'{{rank}}').write_text(str(os.getpid()))
    while rank == 0 and not all((folder / str(other)).exists() for other in range(4)):
        time.sleep(0.05)
    if rank == 0:
        os.kill({job.other.pid}, signal.SIGKILL)
    time.sleep(60)
"""
    code, failure = job.run(guarded(tmp_path, body))
    assert code == 1 and failure is not None and "its node" in failure.reason and failure.reason.endswith("is gone")
    for rank in range(4):
        pid = int((tmp_path / str(rank)).read_text())
        wait_for(lambda: not is_alive(pid), 10)  # noqa: B023


FIRST = """
import json, sys
from pathlib import Path
from rlexp.launch.meeting import Meeting
from rlexp.launch.ranks import run_ranks
from rlexp.launch.signals import handling
folder = Path(sys.argv[1])
with handling() as stop:
    code, failure = run_ranks(json.loads(sys.argv[2]), 4, folder / "ranks", stop, nodes=2, meeting=Meeting(folder / "meeting", "127.0.0.1", 1))
print(code, failure, stop.reason)
"""


def started(tmp_path: Path, body: str) -> tuple[subprocess.Popen[str], subprocess.Popen[bytes]]:
    """Two nodes in processes of their own, once all ranks say that they are there."""
    command = json.dumps(guarded(tmp_path, f"    (folder / f'{{rank}}').write_text(str(os.getpid()))\n{body}"))
    first = subprocess.Popen([sys.executable, "-c", FIRST, str(tmp_path), command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    other = subprocess.Popen([sys.executable, "-c", FOLLOWER, str(tmp_path / "meeting"), "1"], stdin=subprocess.DEVNULL)
    wait_for(lambda: all((tmp_path / str(rank)).exists() and (tmp_path / str(rank)).read_text() for rank in range(4)))
    return first, other


def test_signals_are_passed_on(tmp_path: Path) -> None:
    body = """
    from rlexp.launch.signals import stop_request
    while not stop_request().requested: time.sleep(0.01)
    (folder / f'saved_{rank}').touch()
    return 75
"""
    first, other = started(tmp_path, body)
    first.send_signal(signal.SIGTERM)
    assert first.communicate(timeout=30)[0] == "75 None stopped by SIGTERM\n" and other.wait(20) == 0
    assert all((tmp_path / f"saved_{rank}").exists() for rank in range(4))


def test_kill_9_of_the_first_node_ends_the_ranks_of_all(tmp_path: Path) -> None:
    first, other = started(tmp_path, "    time.sleep(60)")
    first.kill()
    first.communicate()
    assert other.wait(20) == 1
    for rank in range(4):
        pid = int((tmp_path / str(rank)).read_text())
        wait_for(lambda: not is_alive(pid), 10)  # noqa: B023


def test_strangers_are_hung_up_on(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path / "meeting", "127.0.0.1", 1)
    word = read_json(tmp_path / "meeting" / FILE)
    try:
        for line in (b'{"token": "guessed", "node": 1}\n', b"GET / HTTP/1.1\r\n\r\n", b"[]\n"):
            with socket.create_connection((word["address"], word["port"]), timeout=10) as stranger:
                stranger.sendall(line)
                with pytest.raises(UserError, match=r"nodes 1 of the job did not report within 0\.5 s"):
                    meeting.gather(patience=0.5)
                assert stranger.recv(10) == b""
        assert (tmp_path / "meeting").stat().st_mode & 0o077 == 0, "only the user may read the token"
    finally:
        meeting.close()
    assert follow(tmp_path / "meeting", 1) == 0, "who comes when it is over goes home"


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hosts.resolved("ip-10-0-3-7") == hosts.resolved("ip-10-0-3-7.ec2.internal") == "10.0.3.7" and hosts.resolved("localhost") == "127.0.0.1"
    with pytest.raises(UserError, match=r"the address of the node no-such-host\.invalid is unknown"):
        hosts.resolved("no-such-host.invalid")
    assert hosts.interface_of("127.0.0.1") == "lo" and hosts.interface_of("192.0.2.1") is None
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert hosts.network_of("127.0.0.1") == {"NCCL_SOCKET_IFNAME": "lo"}
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho NodeName=n2 Arch=x86_64\necho '   NodeAddr=localhost NodeHostName=n2'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert hosts.own_address() == "127.0.0.1"
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'slurm_load_node error: Unable to contact slurm controller' >&2\nexit 1\n")
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    assert hosts.own_address() == "127.0.0.1", "what the hosts file says where Slurm says nothing"
    (tmp_path / "scontrol").unlink()
    assert hosts.own_address() == "127.0.0.1"
