"""What can be wrong with where a run is started, told from the config alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from rlexp.config.cluster import SlurmClusterConfig, minutes_of
from rlexp.config.run import RunConfig
from rlexp.config.vllm_server import VLLMServerGenerationConfig

INSTALL = "pip install 'rlexp[slurm]'"
OWN_KEYS = {
    "account": "account",
    "constraint": "constraint",
    "cpus-per-task": "cpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "mem": "mem",
    "nodes": "nodes",
    "partition": "partition",
    "qos": "qos",
    "time": "time",
    "signal": "signal_delay",
}
"""Options of sbatch that have a key of their own"""
FIXED = ("array", "error", "job-name", "ntasks", "ntasks-per-node", "open-mode", "output", "requeue", "no-requeue")
"""Options of sbatch that rlexp relies on"""


def submitit_installed() -> bool:
    """Whether jobs can be submitted from here."""
    return importlib.util.find_spec("submitit") is not None


def problems(config: RunConfig) -> Iterator[str]:
    """Rows GRPO-176...180."""
    cluster = config.cluster
    if isinstance(cluster, SlurmClusterConfig):
        yield from _slurm(cluster)
        yield from _vllm_nodes(config, cluster)
        if config.sweep.method == "halving" and not cluster.wait:
            yield "sweep.method=halving compares the runs of a rung before it submits the next: leave cluster.wait=false out"
        if config.sweep.stop_on_failure and not cluster.wait:
            yield "sweep.stop_on_failure=true takes jobs out of the queue when one has failed, so somebody must wait for that: leave cluster.wait=false out"
    elif cluster.nodes > 1:
        yield f"cluster.nodes={cluster.nodes} needs cluster=slurm, which has more than one machine; ranks that torchrun starts are counted by themselves"


def _slurm(cluster: SlurmClusterConfig) -> Iterator[str]:
    if not submitit_installed():
        yield f"cluster=slurm needs the package submitit, which is not installed: {INSTALL}"
    try:
        seconds = 60 * minutes_of(cluster.time)
    except ValueError:
        yield f"cluster.time={cluster.time} is no time limit: give minutes, hours:minutes:seconds or days-hours, e.g. 90, 4:00:00 or 2-0"
    else:
        if cluster.signal_delay >= seconds:
            yield f"cluster.signal_delay={cluster.signal_delay} s is not below cluster.time={cluster.time}: the run would be asked to stop as it starts"
    names = {name.lstrip("-").replace("_", "-") for name in cluster.additional_parameters}
    for name in sorted(names & OWN_KEYS.keys()):
        yield f"cluster.additional_parameters.{name} has a key of its own: set cluster.{OWN_KEYS[name]}"
    for name in sorted(names & set(FIXED)):
        yield f"cluster.additional_parameters.{name} is set by rlexp: leave it out"
    if "gpus" in names and cluster.gpus_per_node is not None:
        yield "cluster.additional_parameters.gpus and cluster.gpus_per_node both ask for GPUs: keep one of the two"


def _vllm_nodes(config: RunConfig, cluster: SlurmClusterConfig) -> Iterator[str]:
    generation = config.generation
    if cluster.vllm_nodes == 0:
        return
    if not isinstance(generation, VLLMServerGenerationConfig) or not generation.launch:
        yield (
            f"cluster.vllm_nodes={cluster.vllm_nodes} serve generation=vllm_server generation.launch=true, and the run has generation={generation.name}"
            f"{' with servers that run already' if isinstance(generation, VLLMServerGenerationConfig) else ''}: set both, or leave cluster.vllm_nodes out"
        )
        return
    if generation.servers != cluster.vllm_nodes:
        yield f"generation.servers={generation.servers} and cluster.vllm_nodes={cluster.vllm_nodes}: each of these nodes has one server; set both to the same"
    if not generation.expose:
        yield (
            "cluster.vllm_nodes puts the servers where other machines reach them, whose users could replace their weights: "
            "set generation.expose=true if only trusted machines can"
        )
    if generation.weight_transfer in ("shared_memory", "ipc"):
        yield (
            f"generation.weight_transfer={generation.weight_transfer} does not leave a machine, and with cluster.vllm_nodes the servers are on others: "
            "use auto, nccl or folder"
        )
    if generation.restart:
        yield f"generation.restart={generation.restart} does not go with cluster.vllm_nodes: leave it out; a run that lost its servers can be started again"
