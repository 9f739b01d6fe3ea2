"""Group `sweep`: how the jobs of `-m` are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from rlexp.config.fields import option


@dataclass
class SweepConfig:
    """How the jobs of `-m` are run."""

    method: str = option(
        "grid", "grid: every job to its end; halving: all jobs to a first rung, then the best of each rung to the next", choices=("grid", "halving")
    )
    jobs: int = option(1, "Jobs that run side by side", ge=1)
    gpus_per_job: Optional[int] = option(None, "GPUs that each of several jobs side by side gets; null: cluster.processes_per_node", ge=1)
    jobs_per_gpu: int = option(1, "Jobs that may share a GPU", ge=1)
    stop_on_failure: bool = option(False, "Start no further job after one has failed")
    name: Optional[str] = option(None, "Folder name of the sweep; null: a hash of its overrides")
    metric: str = option("accuracy", "halving: evaluation metric that decides which runs go on")
    mode: str = option("max", "halving: whether the largest or the smallest values of sweep.metric are the best", choices=("max", "min"))
    reduction: int = option(2, "halving: one run in so many goes on from a rung (eta of the papers)", ge=2)
    min_steps: Optional[int] = option(
        None, "halving: step of the first rung, a multiple of evaluation.steps; null: from trainer.max_steps and the number of jobs", ge=1
    )
    pause_at: Optional[int] = option(None, "Step at which a run saves and pauses (sweep=halving sets it for its rungs); null: it goes on to its end", ge=1)
