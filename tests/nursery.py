"""Ranks and jobs that a program of the tests starts are forked from a copy of it that has imported everything and done nothing, instead of spawned.

That copy (the nursery) is forked before the program begins. `Forked`, in the place of `subprocess.Popen`, asks it for each `python -m MODULE` of MODULES;
arguments, environment, output, signals and exit code are those of a spawned process. A test that looks at a child's command line or environment sets
RLEXP_TESTS_SPAWN=1.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rlexp.launch.watch import PARENT

SPAWN = "RLEXP_TESTS_SPAWN"
MODULES = ("rlexp.launch.worker", "rlexp.train", "rlexp.report")
EVERY = 0.02
"""seconds between two looks"""
LONGEST = 1 << 18


def serve(line: socket.socket, become: Callable[[dict[str, Any]], None]) -> None:
    """Fork for each request, until the program is gone. become: makes a fork the program of a job, and ends it."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    children: set[int] = set()
    while True:
        if select.select([line], [], [], EVERY if children else None)[0]:
            asked, fds, _, _ = socket.recv_fds(line, LONGEST, 3)
            if not asked:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                line.close()
                for number, fd in enumerate(fds):
                    os.dup2(fd, number)
                    os.close(fd)
                become(json.loads(asked))
            for fd in fds:
                os.close(fd)
            children.add(pid)
            line.send(json.dumps({"started": pid}).encode())
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            children.discard(ended[0])
            line.send(json.dumps({"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}).encode())


class Nursery:
    """The program's side."""

    def __init__(self, become: Callable[[dict[str, Any]], None]) -> None:
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            with contextlib.suppress(OSError):
                serve(other, become)
            os._exit(0)
        other.close()

    def start(self, job: dict[str, Any], fds: list[int]) -> int:
        """Its pid."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(job).encode()], fds)
            while "started" not in (told := self._read()):
                pass
            return int(told["started"])

    def code(self, pid: int) -> int | None:
        """Exit code of a child, as of subprocess; None while it runs."""
        with self._lock:
            while select.select([self._line], [], [], 0)[0]:
                self._read()
            return self._codes.get(pid)

    def _read(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._line.recv(LONGEST))
        if "ended" in told:
            self._codes[told["ended"]] = told["code"]
        return told


def forking(nursery: Nursery) -> type[subprocess.Popen]:
    """Popen whose children come from a nursery, where they can."""

    class Forked(subprocess.Popen):
        forked = False

        def _execute_child(self, args: Any, *rest: Any) -> None:
            preexec, cwd, env, pipes = rest[1], rest[4], rest[5], rest[9:15]
            env = dict(os.environ if env is None else env)
            if preexec or list(args[:2]) != [sys.executable, "-m"] or args[2] not in MODULES or SPAWN in env:
                super()._execute_child(args, *rest)  # type: ignore[misc]
                return
            if PARENT in env:  # the child follows the nursery, which ends with the program
                env[PARENT] = str(nursery.pid)
            given = [own if fd == -1 else fd for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
            job = {"module": args[2], "argv": list(args[3:]), "cwd": str(cwd or os.getcwd()), "env": env}
            self.pid = nursery.start(job, given)
            self.forked = self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

        def _internal_poll(self, *given: Any, **named: Any) -> int | None:
            if not self.forked:
                return super()._internal_poll(*given, **named)  # type: ignore[misc]
            if self.returncode is None:
                self.returncode = nursery.code(self.pid)
            return self.returncode

        def _wait(self, timeout: float | None) -> int:
            if not self.forked:
                return super()._wait(timeout)  # type: ignore[misc]
            until = None if timeout is None else time.monotonic() + timeout
            while self._internal_poll() is None:
                if until is not None and time.monotonic() > until:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                time.sleep(EVERY)
            return self.returncode

    return Forked
