"""Handing runs to sbatch, through submitit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlexp.config.cluster import SlurmClusterConfig
from rlexp.config.errors import UserError
from rlexp.launch.slurm.job import SlurmRun
from rlexp.launch.slurm.script import parameters


def submit(runs: Sequence[SlurmRun], cluster: SlurmClusterConfig, name: str, folder: Path) -> list[str]:
    """Submit runs, several as one array. Returns the job id of each: 12, or 12_0, 12_1, ...

    name: of the job. folder: for the script and the logs of Slurm; every node must see it. Raises UserError with what Slurm said when it refuses them.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=cluster.max_timeouts)
    except RuntimeError as error:
        raise UserError("cluster=slurm: there is no srun on this machine: submit from a login node of the cluster, or set cluster=local") from error
    executor.update_parameters(**parameters(cluster, name))
    try:
        with executor.batch():
            submitted = [executor.submit(run) for run in runs]
    except (FailedJobError, FailedSubmissionError) as error:
        raise UserError(f"Slurm refused the job: {_said(str(error))}: change the keys of cluster (cluster.dry_run=true shows the script)") from error
    return [str(job.job_id) for job in submitted]


def _said(text: str) -> str:
    """The lines of sbatch in submitit's message."""
    lines = [line.strip().removeprefix("sbatch: error: ").removeprefix("sbatch: ") for line in text.splitlines() if "sbatch: " in line]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or " ".join(text.split())
