"""How many CPU threads a process of the run uses."""

from __future__ import annotations

import os

from rlexp.config.run import RunConfig


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(config: RunConfig, processes: int) -> int:
    """trainer.threads, else OMP_NUM_THREADS (a sweep with several jobs at once sets it), else the cores divided by the processes."""
    if config.trainer.threads is not None:
        return config.trainer.threads
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))  # of those, on this machine
    return max(1, cores() // max(1, here))
