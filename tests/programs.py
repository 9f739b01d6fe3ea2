"""Run rlexp's programs from tests: `programs.run("rlexp.train", "algorithm=grpo", ...)`, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent


@dataclass
class Done:
    """A program that ended."""

    code: int
    out: str
    err: str


class Programs:
    """Forks programs from a process that has imported everything (see zygote.py). One at a time."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "contracts" / "plugin")]), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, str(TESTS / "zygote.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self._read() == "ready"

    def run(
        self, module: str, *argv: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 120, unset: Sequence[str] = (), merged: bool = False
    ) -> Done:
        """Run to the end. env: added to the tests' environment, less `unset`. Killed after `timeout` seconds (code -9). merged: both outputs are `out`."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "contracts" / "plugin")])}
            job = {"module": module, "argv": list(argv), "cwd": str(cwd), "env": {**paths, **(env or {})}, "out": str(out), "err": str(out if merged else err)}
            job["unset"] = list(unset)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            self.pid = int(self._read())
            timer = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))
            timer.start()
            try:
                code = int(self._read())
            finally:
                timer.cancel()
            return Done(code, *("" if not path.exists() else path.read_text(errors="replace") for path in (out, err)))

    def train(self, *overrides: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 120) -> Done:
        """python -m rlexp.train OVERRIDES."""
        return self.run("rlexp.train", *overrides, cwd=cwd, env=env, timeout=timeout)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End the parent of all programs."""
        self._process.kill()
        self._process.wait()
