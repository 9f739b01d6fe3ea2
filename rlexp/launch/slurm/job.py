"""What runs in a Slurm job: on the first node the program rlexp.train, on the others its ranks and servers.

submitit starts it once on each node, and starts the same again when the job is requeued.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlexp.launch.folder import RunFolder, now
from rlexp.launch.follower import follow
from rlexp.launch.hosts import own_address
from rlexp.launch.jobs import SWEEP_DIR, SWEEP_JOB
from rlexp.launch.meeting import Meeting
from rlexp.launch.signals import PREEMPTED_CODE, shield_children
from rlexp.launch.slurm.queue import SUBMITTED
from rlexp.launch.watch import PARENT

PROGRAM = "rlexp.train"
"""By name, as for a process of its own: it stands a floor above"""
FOLDER = ".slurm"
"""In the sweep's folder: scripts and logs of Slurm and submitit"""


def head_of_life(job: str) -> str:
    """How each life of a job begins its part of the log."""
    return f"--- job {job}"


@dataclass(frozen=True)
class SlurmRun:
    """One run as a job. sweep: its folder. name: of the run folder in it. arguments: of rlexp.train. nodes: of the job."""

    sweep: Path
    name: str
    arguments: tuple[str, ...]
    nodes: int

    def __call__(self) -> None:
        """Ends the process with the run's exit code, so that Slurm sees how it ended."""
        from submitit import JobEnvironment

        job = JobEnvironment()
        shield_children()
        self._write_to_log(job.node, job.job_id)
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        meeting = self.sweep / FOLDER / f"{job.job_id}.{restarts}"
        if job.node > 0:
            sys.exit(follow(meeting, job.node))
        # What the launcher's own process had for itself is not for its jobs.
        for name in (PARENT, "RANK", "WORLD_SIZE", "HYDRA_FULL_ERROR"):
            os.environ.pop(name, None)
        os.environ |= {SWEEP_DIR: str(self.sweep), SWEEP_JOB: self.name, SUBMITTED: job.job_id}
        together = Meeting(meeting, own_address(), self.nodes - 1) if self.nodes > 1 else None
        try:
            code = self._train(again=restarts > 0)
        finally:
            if together is not None:
                together.close()
        sys.exit(code)

    def checkpoint(self) -> Any:
        """Asked by submitit when it requeues the job: the same again, which continues in the same folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _train(self, again: bool) -> int:
        """The exit code of the program. again: the job was requeued, and must not put away what its earlier life has done."""
        sys.argv = ["rlexp-train", *self.arguments, *(["run.resume=auto"] if again else [])]
        try:
            importlib.import_module(PROGRAM).main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception as error:  # by submitit, which could not or would not requeue the job
            traceback.print_exc()
            folder = RunFolder(self.sweep / self.name)
            folder.write_status(reason=f"{folder.status().get('reason', 'stopped')}; {str(error) or type(error).__name__}")
            return PREEMPTED_CODE
        return 0

    def _write_to_log(self, node: int, job: str) -> None:
        """Send stdout and stderr to the job's log in the sweep's folder, behind what earlier lives wrote; submitit's own files keep what Slurm says."""
        logs = self.sweep / "logs"
        logs.mkdir(exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        with open(logs / (f"{self.name}.log" if node == 0 else f"{self.name}.node_{node}.log"), "ab") as log:
            log.write(f"{head_of_life(job)} {now()} {' '.join(self.arguments)}\n".encode())
            log.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
