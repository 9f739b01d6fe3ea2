"""A real Slurm on this machine for tests, and rlexp's programs in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from programs import TESTS
from run_folders import status
from small_runs import SMALL, options

SCRIPT = TESTS.parent / "scripts" / "slurm_on_one_machine.sh"
PATIENCE = 180.0
"""Seconds for anything that takes seconds on an idle machine"""
ON_SLURM = ["cluster=slurm", "cluster.poll=0.5", "cluster.mem=600M", "cluster.cpus_per_node=1"]


def until(condition: Callable[[], object], seconds: float = PATIENCE, what: str = "") -> None:
    """Wait until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what or "it did not happen in time"
        time.sleep(0.1)


class Slurm:
    """The daemons, in a folder of their own. spare: two nodes of two CPUs and two pretended GPUs each; partitions ci and high, which preempts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if name == "RLEXP_CACHE" or not name.startswith(("SLURM_", "RLEXP_", "SUBMITIT_"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "contracts" / "plugin")]),
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run(["bash", SCRIPT, "up", folder, "2"], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)

    def down(self) -> None:
        """End all jobs and the daemons."""
        if any(self.queue()):
            self.ask("scancel", "--user=root", check=False)
            until(lambda: not self.queue(), 60)
        subprocess.run(["bash", SCRIPT, "down", self.folder], check=True, stdin=subprocess.DEVNULL, timeout=120)

    def ask(self, *command: str, check: bool = True) -> str:
        """What a program of Slurm prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def queue(self) -> list[str]:
        """Jobs that have not ended."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i", check=False).split()

    def state(self, job: str) -> str:
        """The state of a job."""
        return self.ask("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%T", check=False)

    def leftovers(self) -> list[str]:
        """Processes, other than the daemons, that know this Slurm by their environment."""
        mark = f"SLURM_CONF={self.folder}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if int(path.name) != os.getpid() and mark in (path / "environ").read_bytes():
                    command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if command and not re.search(r"(^|[/ ])slurm(ctl|script)?d( |$)", command):
                        found.append(f"{path.name} {command}")
            except OSError:
                continue
        return found


class Sweep:
    """One command line `rlexp.train -m cluster=slurm ...` in a folder of its own. name: of the sweep."""

    def __init__(self, slurm: Slurm, folder: Path, *overrides: str, base: Sequence[str] = SMALL, name: str = "s", env: dict[str, str] | None = None) -> None:
        self.slurm, self.folder, self.out = slurm, folder, folder / "out"
        small = [option for option in options(base, overrides) if not option.startswith("run.name")]
        self.command = [sys.executable, "-m", "rlexp.train", "-m", *ON_SLURM, *small, f"sweep.name={name}"]
        self.path = self.out / "sweeps" / name
        self.environment = {**slurm.environment, "RLEXP_OUTPUTS": str(self.out), **(env or {})}
        self.process: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> Sweep:
        """In the background."""
        self.process = subprocess.Popen(
            [*self.command, *more], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self

    def wait(self, seconds: float = PATIENCE) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of what was started."""
        assert self.process is not None
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            out, err = self.process.communicate()
            raise AssertionError(f"not done after {seconds} s\n{out}\n{err}\n{self.logs()}") from None
        return self.process.returncode, out, err

    def run(self, *more: str) -> tuple[int, str, str]:
        """Start and wait."""
        return self.start(*more).wait()

    @property
    def runs(self) -> list[Path]:
        """The run folders."""
        return sorted(path.parent for path in self.path.glob("*/status.json"))

    def steps(self) -> int:
        """Lines of metrics.jsonl of the only run so far."""
        return sum((path / "metrics.jsonl").read_bytes().count(b"\n") for path in self.runs if (path / "metrics.jsonl").exists())

    def job(self) -> str:
        """The Slurm job of the only run."""
        (run,) = self.runs
        return str(status(run)["slurm_job"])

    def logs(self) -> str:
        """Everything that the jobs wrote, for messages."""
        paths = [*self.path.glob("logs/*"), *self.path.glob(".slurm/*.out")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)
