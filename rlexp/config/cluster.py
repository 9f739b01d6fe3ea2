"""Group `cluster`: where the processes of a run are started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from rlexp.config.fields import option

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


@dataclass
class ClusterConfig:
    """On this machine."""

    name: str = option("local", "Where processes run")
    nodes: int = option(1, "Machines that train, cluster.processes_per_node processes on each; more than one: cluster=slurm", ge=1)
    processes_per_node: int = option(1, "Processes on each machine", ge=1)

    @property
    def processes(self) -> int:
        """All processes that train."""
        return self.nodes * self.processes_per_node


@dataclass
class SlurmClusterConfig(ClusterConfig):
    """In jobs of a Slurm cluster: every run of a sweep (-m) is a job, and the sweep is an array."""

    name: str = "slurm"
    vllm_nodes: int = option(
        0, "Further nodes of the same job that serve generation=vllm_server generation.launch=true, a server on each; the others train", ge=0
    )
    partition: Optional[str] = option(None, "Partition; null: the cluster's default")
    account: Optional[str] = option(None, "Account that is charged")
    qos: Optional[str] = option(None, "Quality of service")
    time: str = option("4:00:00", "Time limit as sbatch writes it: minutes, hours:minutes:seconds or days-hours")
    gpus_per_node: Optional[int] = option(None, "GPUs of each node; null: none is asked for", ge=0)
    cpus_per_node: Optional[int] = option(None, "CPUs of each node; null: the cluster's default", ge=1)
    mem: Optional[str] = option(None, "Memory of each node, e.g. 64G; null: the cluster's default")
    constraint: Optional[str] = option(None, "Features that the nodes must have")
    setup: List[str] = option([], "Shell lines before the run starts, e.g. ['module load cuda']")
    additional_parameters: Dict[str, Any] = option({}, "Further options of sbatch by name, e.g. {reservation: night}; true: one without a value")
    array_parallelism: int = option(256, "Jobs of a sweep that may run at once", ge=1)
    signal_delay: int = option(120, "Seconds before the time limit at which a run is asked to save; it is requeued then", ge=1)
    max_timeouts: int = option(10, "How often a job that reached its time limit is requeued; preemptions do not count", ge=0)
    wait: bool = option(True, "Stay until all jobs have ended; false: submit them, print their ids and return")
    poll: float = option(5.0, "Seconds between two looks at the queue", gt=0)
    dry_run: bool = option(False, "Print what would be submitted, and submit nothing")


def minutes_of(text: str) -> int:
    """A time limit in minutes, rounded up. Raises ValueError for what sbatch would not understand.

    text: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds (sbatch(1), --time).
    """
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    days, first, second, third = (None if part is None else int(part) for part in found.groups())
    if days is not None or third is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = 0, first, second
    total = ((days or 0) * 24 + (hours or 0)) * 3600 + (minutes or 0) * 60 + (seconds or 0)
    if total == 0:
        raise ValueError(text)
    return -(-total // 60)
