"""Life and death of a launched server: what the process does is that of any server, so these run a small one without a model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server import process
from rlexp.generation.vllm_server.process import ServerFailed, ServerProcess, check_port, free_port

FAKE = Path(__file__).parents[1] / "server_fake.py"


def launch(folder: Path, *arguments: str, port: int | None = None) -> ServerProcess:
    port = port or free_port()
    command = [sys.executable, str(FAKE), "--port", str(port), *arguments]
    return ServerProcess(command, {"PYTHONUNBUFFERED": "1"}, host="127.0.0.1", port=port, log=folder / "server_0.log", grace=0.3)


def ends(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process is gone within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def group_of(log: Path) -> list[int]:
    """The child that the server printed."""
    deadline = time.monotonic() + 10
    while "listening" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("child")]


@pytest.mark.rows("GRPO-200", "GRPO-205")
def test_starts_answers_and_stops_with_all_its_processes(tmp_path):
    server = launch(tmp_path, "--child")
    server.wait_healthy(20)
    (child,) = group_of(tmp_path / "server_0.log")
    assert server.code is None
    server.stop()
    assert server.code is not None
    assert ends(child, 1.0), "a child that ignores SIGTERM is killed with its group"
    server.stop()


def test_shared_memory_of_a_server_that_was_killed_goes_too(tmp_path):
    server = launch(tmp_path, "--shared-memory", "--child")
    server.wait_healthy(20)
    (child,) = group_of(tmp_path / "server_0.log")
    (block,) = [Path(line.split()[1]) for line in (tmp_path / "server_0.log").read_text().splitlines() if line.startswith("block")]
    assert block.exists()
    os.killpg(os.getpgid(child), signal.SIGSTOP)  # nothing of it can clean up any more
    server.stop()
    assert not block.exists() and ends(child)


def test_listens_on_loopback_only(tmp_path):
    server = launch(tmp_path)
    server.wait_healthy(20)
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=True).stdout.splitlines()
    mine = [line.split()[3] for line in listening if line.split()[3].endswith(f":{server.port}")]
    server.stop()
    assert mine == [f"127.0.0.1:{server.port}"]


def test_one_that_ends_at_its_start_is_an_error_with_the_end_of_its_log(tmp_path):
    server = launch(tmp_path, "--fail", "no such model: x")
    with pytest.raises(ServerFailed, match=r"(?s)ended with code 3.*server_0\.log.*no such model: x"):
        server.wait_healthy(20)


def test_the_reason_comes_first_and_noise_is_left_out(tmp_path):
    lines = [
        "ValidationError: 1 validation error",
        "  Value error, heads (2) must be divisible by 3. [type=value_error, input=x]",
        "(APIServer pid=1) WARNING 11-30 02:22:07 [utils.py:255] This can cause errors like OSError: too many open files",
        "nanobind: leaked 4 instances!",
        " - leaked x",
    ]
    server = launch(tmp_path, "--fail", "\n".join(lines))
    with pytest.raises(ServerFailed) as error:
        server.wait_healthy(20)
    first, *rest = str(error.value).splitlines()
    assert "ended with code 3: Value error, heads (2) must be divisible by 3.; the end of" in first
    assert "nanobind" not in str(error.value) and "leaked" not in str(error.value) and len(rest) == 3


def test_one_that_is_not_ready_in_time_is_stopped(tmp_path):
    server = launch(tmp_path, "--start-seconds", "60")
    with pytest.raises(ServerFailed, match=r"not ready after generation\.timeout=0\.5 seconds"):
        server.wait_healthy(0.5)
    assert server.code is not None


@pytest.mark.rows("GRPO-179")
def test_one_that_loads_a_large_model_gets_more_time_while_it_says_so(tmp_path, monkeypatch):
    server = launch(tmp_path, "--shards", "12")
    server.wait_healthy(1.5)  # python itself takes a part of this to start
    server.stop()
    assert "11/12" in (tmp_path / "server_0.log").read_text()
    monkeypatch.setattr(process, "STARTING", 0.5)
    endless = launch(tmp_path, "--shards", "1000")
    with pytest.raises(ServerFailed, match="without a word"):
        endless.wait_healthy(1.0)


def test_a_second_server_of_the_same_name_shows_its_own_part_of_the_log(tmp_path):
    for text in ("first reason", "second reason"):
        server = launch(tmp_path, "--fail", text)
        with pytest.raises(ServerFailed) as error:
            server.wait_healthy(20)
    assert "second reason" in str(error.value) and "first reason" not in str(error.value)


@pytest.mark.rows("GRPO-204")
def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"generation\.port={port} cannot be used .*choose another one"):
            launch(tmp_path, port=port)
    check_port("127.0.0.1", free_port())


PARENT = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from test_server_process import launch
server = launch(Path({folder!r}), "--child")
server.wait_healthy(20)
print(server.pid, flush=True)
{then}
"""


def parent(folder: Path, then: str) -> tuple[subprocess.Popen[str], int]:
    """A process that launched a server, and the pid of the server's warden."""
    paths = [str(Path(__file__).parent), *sys.path]
    code = PARENT.format(path=paths, folder=str(folder), then=then)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("end", ["killed", "crashed", "forgot"])
def test_nothing_is_left_when_the_trainer_is_gone(tmp_path, end):
    """SIGKILL, an exception, and an end without `stop`."""
    process, warden = parent(tmp_path, {"killed": "time.sleep(600)", "crashed": "raise RuntimeError", "forgot": ""}[end])
    (child,) = group_of(tmp_path / "server_0.log")
    if end == "killed":
        process.kill()
    process.wait(20)
    assert ends(warden) and ends(child)


def test_when_the_server_dies_its_other_processes_do_too(tmp_path):
    server = launch(tmp_path, "--child")
    server.wait_healthy(20)
    (child,) = group_of(tmp_path / "server_0.log")
    leader = os.getpgid(child)
    os.kill(leader, signal.SIGKILL)
    assert ends(child)
    deadline = time.monotonic() + 10
    while server.code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.code == 128 + signal.SIGKILL
    assert "ended with code 137" in str(server.died())
    server.stop()
