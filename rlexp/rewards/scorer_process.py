"""A scorer in a process of its own, with a time and a memory limit for each answer.

Parsers of mathematics evaluate what a model writes, and a tower of powers like 9^9^9 computes for hours inside one C call, which
no exception, signal or thread of the same process interrupts. So the child arms a watchdog in C that ends it, and is started anew.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from typing import IO, Any

MEMORY_BYTES = 4 * 2**30
"""address space of the child; an answer that wants more is treated like one that takes too long"""


class TookTooLong(Exception):
    """The child was ended by its limits while it scored an answer."""


class ScorerFailed(Exception):
    """The scorer raised; the message holds its exception."""


class ScorerProcess:
    """Calls "module:function" in a child process: arguments are pickled, results come back as JSON. Calls are one at a time."""

    def __init__(self, target: str, seconds: float) -> None:
        """seconds: limit of one call. The child starts with the first call and ends with this process."""
        self._command = [sys.executable, "-m", "rlexp.rewards.scorer_process", target, str(seconds)]
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, *arguments: Any) -> Any:
        """The function's result. Raises TookTooLong, or ScorerFailed when it raised."""
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None and process.stdout is not None
            try:
                pickle.dump(arguments, process.stdin)
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            if not line:
                self._process = None
                _stop(process)
                raise TookTooLong
        answer = json.loads(line)
        if "error" in answer:
            raise ScorerFailed(answer["error"])
        return answer["value"]

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the child and wait until it has imported the function."""
        # A session of its own: Ctrl-C and the like are for the run, which still wants the scores of its last step.
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            _stop(process)
            raise RuntimeError(f"the scorer process did not start: {' '.join(self._command)}")
        weakref.finalize(self, _stop, process)
        self._process = process
        return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what was written to a dead child is lost, as it should be
                pipe.close()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard), hard))


def _serve(target: str, seconds: float, requests: IO[bytes], replies: IO[bytes]) -> None:
    """The child: answer requests until the parent is gone."""
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    _limit_memory()
    replies.write(b"ready\n")
    replies.flush()
    with open(os.devnull, "w") as nowhere:
        while True:
            try:
                arguments = pickle.load(requests)
            except EOFError:
                return
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            try:
                answer = {"value": function(*arguments)}
            except MemoryError:
                os._exit(1)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            faulthandler.cancel_dump_traceback_later()
            replies.write(json.dumps(answer).encode() + b"\n")
            replies.flush()


def main() -> None:
    """Entry point of the child. What the scorer prints goes to stderr: stdout carries the replies."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"):  # a scheduler sends them to every process; the parent decides when to end
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.argv[1], float(sys.argv[2]), sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
