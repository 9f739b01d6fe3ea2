"""What each of several jobs side by side on this machine gets: GPUs of its own and its share of the cores."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from rlexp.config.errors import UserError
from rlexp.config.sweep import SweepConfig
from rlexp.launch.threads import cores

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
TIMEOUT = 30.0
"""Seconds nvidia-smi may take: it wakes sleeping drivers"""


def places(settings: SweepConfig, jobs: int, processes: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """What each place for a job adds to the environment; as many places as run side by side, the same whenever the sweep is continued.

    jobs: of the whole sweep. processes: of each job (cluster.processes_per_node). environment: of this process. A sweep whose jobs run one after the
    other shares nothing out. Raises UserError when the GPUs do not suffice.
    """
    parallel = min(settings.jobs, jobs)
    if parallel == 1:
        return [{}]
    shared: dict[str, str] = {}
    if "OMP_NUM_THREADS" not in environment:
        shared["OMP_NUM_THREADS"] = str(max(1, cores() // (parallel * processes)))
    gpus = visible_gpus(environment)
    if not gpus:
        return [dict(shared) for _ in range(parallel)]
    if VISIBLE not in environment:
        shared[ORDER] = "PCI_BUS_ID"  # how nvidia-smi counts; CUDA by itself puts the fastest first
    dealt = deal(gpus, parallel, settings.gpus_per_job or processes, settings.jobs_per_gpu)
    return [{**shared, VISIBLE: ",".join(mine)} for mine in dealt]


def deal(gpus: Sequence[str], jobs: int, per_job: int, jobs_per_gpu: int) -> list[list[str]]:
    """The GPUs of each job: `per_job` neighbours, which up to `jobs_per_gpu` jobs share. Raises UserError when there are too few."""
    sets = [list(gpus[first : first + per_job]) for first in range(0, len(gpus) - per_job + 1, per_job)]
    there = f"{len(gpus)} of them ({VISIBLE}={','.join(gpus)})" if len(gpus) > 1 else f"one ({gpus[0]})"
    if not sets:
        raise UserError(f"each job needs {per_job} GPUs (sweep.gpus_per_job, else cluster.processes_per_node), and there is {there}: lower that number")
    if jobs > len(sets) * jobs_per_gpu:
        raise UserError(
            f"sweep.jobs={jobs} jobs side by side with {per_job} GPU each need {math.ceil(jobs / jobs_per_gpu) * per_job} GPUs, and there is {there}: "
            f"set sweep.jobs={len(sets) * jobs_per_gpu}, or let jobs share GPUs by sweep.jobs_per_gpu={math.ceil(jobs / len(sets))}"
        )
    return [sets[number % len(sets)] for number in range(jobs)]


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs a process may use, as CUDA_VISIBLE_DEVICES names them: those that it names already, else all that nvidia-smi lists."""
    given = environment.get(VISIBLE)
    if given is None:
        return listed_gpus(_nvidia_smi())
    # CUDA looks at nothing behind the first name that is no device (CUDA C programming guide, environment variables).
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in given.split(","))))


def listed_gpus(text: str) -> list[str]:
    """The GPUs in the output of `nvidia-smi -L`: numbers; of a GPU that is cut in MIG instances, their ids, the only way to name them."""
    gpus: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+): ", line):
            gpus.append((whole[1], []))
        elif gpus and (part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line)):
            gpus[-1][1].append(part[1])
    return [name for number, parts in gpus for name in (parts or [number])]


def _nvidia_smi() -> str:
    """What `nvidia-smi -L` prints; nothing where there is no such program or no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
