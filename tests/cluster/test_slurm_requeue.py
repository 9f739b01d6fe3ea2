"""A job as submitit starts it, with a scontrol that writes down how it is called. No Slurm needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import TESTS
from run_folders import status, train_steps
from slurm_here import until
from small_runs import SMALL

from rlexp.generation.vllm_server import warden
from rlexp.launch.lock import is_alive
from rlexp.launch.slurm.job import FOLDER, SlurmRun

SCONTROL = '#!/bin/sh\necho "$@" >> "$CALLS"\n'
ARGUMENTS = [option for option in SMALL if not option.startswith("run.name")] + ["reward.terms.digits.sleep=0.5", "trainer.max_steps=400", "evaluation=none"]


@pytest.mark.cases("S53")
@pytest.mark.rows("GRPO-177")
@pytest.mark.parametrize("array", [True, False], ids=["array", "alone"])
def test_the_task_is_requeued_not_the_array(tmp_path: Path, array: bool) -> None:
    from submitit.core.utils import DelayedSubmission

    job = "1234_2" if array else "1235"
    submitted = DelayedSubmission(SlurmRun(tmp_path, "second", ("cluster=slurm", *ARGUMENTS), 1))
    submitted.set_timeout(240, 10)
    (tmp_path / FOLDER).mkdir()
    submitted.dump(tmp_path / FOLDER / f"{job}_submitted.pkl")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(SCONTROL)
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "contracts" / "plugin")]),
        "CALLS": str(tmp_path / "calls"),
        "SUBMITIT_EXECUTOR": "slurm",
        "SLURM_JOB_ID": "1235",
        **({"SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_ID": "2"} if array else {}),
    }
    process = subprocess.Popen([sys.executable, "-m", "submitit.core._submit", str(tmp_path / FOLDER)], env=environment, cwd=tmp_path)
    run = tmp_path / "second"
    until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 2)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 255, "as submitit ends a job that it has requeued"
    assert (tmp_path / "calls").read_text() == f"requeue {job}\n"
    assert status(run)["status"] == "preempted" and status(run)["slurm_job"] == job and len(train_steps(run)) >= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [FOLDER, "bin", "calls", "logs", "second"]
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["second.log"]


CHILD = """
import signal, subprocess, sys, time
from rlexp.launch.signals import handling, shield_children
shield_children()
with handling() as stop:
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    while not stop.requested:
        time.sleep(0.05)
    time.sleep(0.5)
    print(stop.reason, child.poll(), flush=True)
    child.kill()
"""


def test_children_do_not_die_of_the_warning(tmp_path: Path) -> None:
    """Slurm signals every process of a job; one without a handler for SIGUSR2 would end there and then."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGUSR2)
    assert process.communicate(timeout=30)[0] == "stopped by SIGUSR2 None\n"


def test_a_server_does_not_die_of_preemption(tmp_path: Path) -> None:
    """Slurm's SIGTERM is for the trainer, which wants to finish its step with the server; the server ends when the trainer says so."""
    child = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"
    command = [sys.executable, warden.__file__, str(os.getpid()), "5", sys.executable, "-c", child, str(tmp_path / "pid")]
    process = subprocess.Popen(command, env={**os.environ, "SLURM_JOB_ID": "1"}, stderr=subprocess.DEVNULL, start_new_session=True)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    server = int((tmp_path / "pid").read_text())
    for target in (server, process.pid):
        os.kill(target, signal.SIGTERM)
    time.sleep(1.0)
    assert is_alive(server) and process.poll() is None
    process.send_signal(signal.SIGHUP)
    process.wait(20)
    assert not is_alive(server)
