"""The measured processes, from the outside: started, given turns, stopped. The parent imports no torch."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlexp.launch.watch import PARENT, follow_parent
from scripts.bench.workloads import THREADS

LIMIT_S = 900.0
"""for one answer of a process"""
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "MKL_NUM_THREADS": str(THREADS),
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
"""what is freed returns to the system at once, so that a peak is one of live memory. It costs time: for processes that are not timed"""

Record = dict[str, Any]


class BenchError(Exception):
    """A measured process failed; says what it said last."""


def _run(target: str, log: Path, pipe: Connection, arguments: Sequence[Any]) -> None:
    """In the new process: everything printed goes to its log, and it ends when its parent is gone."""
    follow_parent(lambda: os._exit(1))
    sys.stdout.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    module, _, name = target.partition(":")
    try:
        getattr(importlib.import_module(module), name)(pipe, *arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise


class Side:
    """A process that takes turns. target: module:function, called with a pipe and the arguments. log: gets its output. environment: beside ENVIRONMENT."""

    def __init__(self, name: str, target: str, log: Path, *arguments: Any, environment: Mapping[str, str] | None = None) -> None:
        self.name, self.log = name, log
        context = multiprocessing.get_context("spawn")
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=_run, args=(target, log, child, arguments), daemon=True)
        wanted = {**ENVIRONMENT, PARENT: str(os.getpid()), **(environment or {})}
        before = {key: os.environ.get(key) for key in wanted}
        os.environ.update(wanted)
        try:
            self.process.start()
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
        child.close()

    def answer(self) -> Any:
        """What it sends next. Raises BenchError when it dies or is silent."""
        try:
            if not self.pipe.poll(LIMIT_S):
                self.process.kill()
                raise BenchError(f"{self.name} did not answer within {LIMIT_S:.0f} s ({self.log})")
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(10)
            said = self.log.read_text(errors="replace").strip().splitlines()[-25:]
            raise BenchError(f"{self.name} ended early ({self.log}):\n" + "\n".join(said)) from error

    def turn(self, command: Any = "step") -> Record:
        """Let it work through one batch; returns the record."""
        self.pipe.send(command)
        return self.answer()

    def stop(self) -> None:
        """End it: by asking, else by force."""
        if self.process.is_alive():
            with contextlib.suppress(OSError):
                self.pipe.send("stop")
            self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def once(name: str, target: str, log: Path, *arguments: Any, environment: Mapping[str, str] | None = None) -> Any:
    """The one answer of a process that does one thing and ends."""
    side = Side(name, target, log, *arguments, environment=environment)
    try:
        return side.answer()
    finally:
        side.process.join(20)
        side.stop()
