"""A vLLM server that rlexp started: its life from the free port to the last process of its group."""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server import warden

POLL = 0.2
STARTING = 1500.0
"""seconds in which a server may take its time as long as it says something; 72 billion weights need more than the default of generation.timeout"""
TAIL_LINES = 25
"""Lines of a dead server's log that its error shows"""
NOISE = re.compile(r'^nanobind: |^ - (leaked|\.\.\. skipped)|"(GET|POST) [^"]*" 200|resource_tracker|^See https://nanobind')
"""Lines of a log that would stand between a reader and the reason: answered requests, and what libraries say when they are torn down"""
REASON = re.compile(r"\b(\w*Error|\w*Exception|error|Value error)\b[:,] ")
HARMLESS = re.compile(r"\b(DEBUG|INFO|WARNING) +\d\d-\d\d ")
"""Lines that vLLM itself calls no errors"""
MOST = 300
"""Characters of the reason"""
LOOPBACK = "127.0.0.1"


class ServerFailed(UserError):
    """The server did not start, or died. The message ends with the last lines of its log."""


def free_port() -> int:
    """A TCP port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raise UserError when somebody listens there already: a second server would only find out after loading its model."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"generation.port={port} cannot be used on {host} ({error.strerror}): choose another one, or leave it out and a free one is taken; "
                "a server that runs already is used with generation.launch=false"
            ) from error


class LaunchedServer(ABC):
    """A server that rlexp started, here or on another node. Its log begins at `log_start`, behind that of an earlier server of the same name."""

    def __init__(self, *, host: str, port: int, log: Path) -> None:
        self.port, self.log = port, log
        self.connect_host = LOOPBACK if host == "0.0.0.0" else host
        self.url = f"http://{self.connect_host}:{port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0

    @property
    @abstractmethod
    def code(self) -> int | None:
        """Exit code of the server, 128 + signal number for a signal; None while it lives."""

    @abstractmethod
    def stop(self, now: bool = False) -> None:
        """End the server and every process of its group; now: without patience. A second call does nothing."""

    def tail(self) -> str:
        """The end of its log, for error messages."""
        return "\n".join(f"  | {line}" for line in self._lines()[-TAIL_LINES:])

    def _lines(self) -> list[str]:
        if not self.log.exists():  # on another node, which has not come so far
            return []
        with open(self.log, encoding="utf-8", errors="replace") as file:
            file.seek(self._log_start)
            return [line for line in file.read().rstrip().splitlines() if not NOISE.search(line)]

    def _reason(self) -> str:
        """The last line of the log that names an error, without what pydantic adds; empty when none does."""
        named = [line for line in self._lines() if REASON.search(line) and not HARMLESS.search(line)]
        return " ".join(named[-1].partition("[type=")[0].split())[:MOST] if named else ""

    def gone(self) -> ServerFailed | None:
        """Why a server that was ready is none any more: it ended, or it listens no longer. One whose engine died waits for its open connections then;
        it is ended here."""
        if self.code is None:
            try:
                socket.create_connection((self.connect_host, self.port), timeout=5.0).close()
                return None
            except ConnectionRefusedError:
                self.stop(now=True)
            except OSError:  # busy, not gone
                return None
        return self.died()

    def died(self) -> ServerFailed:
        """The error for a server that has ended."""
        reason = self._reason()
        return ServerFailed(f"the vLLM server at {self.url} ended with code {self.code}{reason and ': ' + reason}; the end of {self.log}:\n{self.tail()}")

    def wait_healthy(self, timeout: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Return when it answers. Raises ServerFailed when it ends, or is not ready in time (it is stopped then). stopped: whether to give up waiting.

        timeout: seconds; while its log grows, as it does when a large model is loaded, they begin anew, up to STARTING in all.
        """
        began = heard = time.monotonic()
        said = 0
        while not stopped():
            if self.code is not None:
                raise self.died()
            try:
                if httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            size = self.log.stat().st_size if self.log.exists() else 0
            if size > said and time.monotonic() - began < STARTING:
                heard, said = time.monotonic(), size
            if time.monotonic() - heard > timeout:
                self.stop()
                raise ServerFailed(
                    f"the vLLM server at {self.url} was not ready after generation.timeout={timeout:g} seconds without a word in its log: raise it for a "
                    f"large model; the end of {self.log}:\n{self.tail()}"
                )
            time.sleep(POLL)


class ServerProcess(LaunchedServer):
    """One server on this machine.

    command: as `command.server_command` gives it. environment: added to this process's. log: file that gets everything it prints; a second
    server of the same name goes on in the same file. grace: seconds its processes get to end by themselves. It ends with `stop`, at exit, or
    when this process is killed (see warden.py).
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, host: str, port: int, log: Path, grace: float = warden.GRACE) -> None:
        check_port(host, port)
        super().__init__(host=host, port=port, log=log)
        self.grace = grace
        wrapped = [sys.executable, warden.__file__, str(os.getpid()), str(grace), *command]
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                wrapped, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """Of the warden, which lives as long as the server."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """See LaunchedServer."""
        return self._process.poll()

    def stop(self, now: bool = False) -> None:
        """See LaunchedServer."""
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT if now else signal.SIGHUP)
            try:
                self._process.wait(self.grace + 10.0)
            except subprocess.TimeoutExpired:  # only if the warden itself hangs; its death takes the server along
                self._process.kill()
                self._process.wait()
