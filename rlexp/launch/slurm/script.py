"""The sbatch script of a run or a sweep. submitit writes it; this says with what."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from rlexp.config.cluster import SlurmClusterConfig, minutes_of


def parameters(cluster: SlurmClusterConfig, name: str) -> dict[str, Any]:
    """Keyword arguments of submitit's SlurmExecutor.update_parameters. name: of the job."""
    cpus = cluster.cpus_per_node
    srun = ["--kill-on-bad-exit=1"]  # should a node's process die in a way that nobody else notices
    given = {
        "job_name": name,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "time": minutes_of(cluster.time),
        "nodes": cluster.nodes + cluster.vllm_nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "cpus_per_task": cpus,  # a node has one task, which starts its ranks
        "mem": cluster.mem,
        "constraint": cluster.constraint,
        "setup": list(cluster.setup) or None,
        "signal_delay_s": cluster.signal_delay,
        "array_parallelism": cluster.array_parallelism,
        "stderr_to_stdout": True,
        "srun_args": srun if cpus is None else [*srun, f"--cpus-per-task={cpus}"],  # since Slurm 22.05 srun does not take it from the job
        "additional_parameters": {"requeue": True, **{name.lstrip("-").replace("_", "-"): value for name, value in cluster.additional_parameters.items()}},
    }
    return {**{key: value for key, value in given.items() if value is not None}, "wckey": None}  # submitit gives one by default, which clusters may refuse


def script_text(cluster: SlurmClusterConfig, name: str, folder: Path, jobs: int) -> str:
    """The script that submits so many jobs, as an array if there are several. folder: for submitit's files."""
    from submitit.slurm import slurm

    command = " ".join([shlex.quote(sys.executable), "-u -m submitit.core._submit", shlex.quote(str(folder))])
    return str(slurm._make_sbatch_string(command=command, folder=folder, map_count=jobs if jobs > 1 else None, **parameters(cluster, name)))
