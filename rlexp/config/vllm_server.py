"""Group `generation`, the option that samples on vLLM servers, and what can be wrong with it, told from the config alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Optional
from urllib.parse import urlsplit

from rlexp.config.fields import option
from rlexp.config.run import RunConfig
from rlexp.config.strategy import RanksStrategyConfig
from rlexp.config.vllm import INSTALL, EngineGenerationConfig, vllm_installed

DEFAULT_PORT = 8000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass
class VLLMServerGenerationConfig(EngineGenerationConfig):
    """vLLM servers, started by rlexp (launch=true) or running already, reached over HTTP."""

    scores: ClassVar[bool] = True
    name: str = "vllm_server"
    launch: bool = option(False, "Start the servers, and stop them at the end of the run; false: use those that base_url names")
    base_url: Optional[str] = option(
        None, "Addresses of running servers, several separated by commas, e.g. http://gpu1:8000,http://gpu2:8000; null: http://host:port"
    )
    host: str = option("127.0.0.1", "Where a launched server listens, and where one is looked for without base_url")
    port: Optional[int] = option(None, "Its port (a further launched server takes the next one); null: a free one with launch, else 8000", ge=1, le=65535)
    servers: int = option(1, "Servers to launch; requests go to the one with the fewest rollouts under way", ge=1)
    devices: Optional[str] = option(
        None, "CUDA_VISIBLE_DEVICES of launched servers; servers separated by semicolons, e.g. '1;2' or '2,3'; null: that of the run"
    )
    expose: bool = option(
        False, "Let launched servers listen on another address than loopback: whoever reaches it can replace the weights, vLLM asks for no password"
    )
    timeout: float = option(
        240.0, "Seconds a server may take to start (a launched one: while its log does not grow), and seconds it may be out of reach before the run ends", gt=0
    )
    request_timeout: float = option(1500.0, "Seconds one sampling request may take on a server that answers", gt=0)
    restart: int = option(0, "How often a launched server that died is started again, with current weights; the interrupted batch is generated anew", ge=0)
    gpu_memory_utilization: float = option(0.9, "Share of its GPU's memory that a launched server may take", gt=0, le=1)
    cpu_cache_gib: int = option(1, "On a CPU: GiB of the key-value cache of a launched server", ge=1)
    tensor_parallel_size: int = option(1, "GPUs that share one copy of the weights in each launched server", ge=1)
    weight_transfer: str = option(
        "auto",
        "How weights reach the servers: shared_memory (same machine), folder (a folder both see), nccl (other GPUs), ipc (the same GPU). "
        "auto: nccl when rlexp trains on a GPU, else shared_memory",
        choices=("auto", "shared_memory", "folder", "nccl", "ipc"),
    )
    transfer_folder: Optional[str] = option(None, "With weight_transfer=folder: a folder that trainer and servers see under the same path")
    bucket_mib: int = option(64, "MiB of weights that are sent at once; a larger tensor is sent alone", ge=1)
    group_port: int = option(51216, "With weight_transfer=nccl: port where trainer and servers meet", ge=1, le=65535)
    group_host: str = option("127.0.0.1", "With weight_transfer=nccl: address of the trainer's machine as the servers see it")


def urls(config: VLLMServerGenerationConfig) -> list[str]:
    """The addresses of servers that run already."""
    given = config.base_url or f"http://{config.host}:{config.port or DEFAULT_PORT}"
    return [url.strip().rstrip("/") for url in given.split(",") if url.strip()]


def problems(config: RunConfig) -> Iterator[str]:
    """Rows GRPO-200...207."""
    generation = config.generation
    if not isinstance(generation, VLLMServerGenerationConfig):
        return
    if generation.launch:
        yield from _launched(generation)
    else:
        for url in urls(generation):
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
                yield f"generation.base_url: {url} is no address; write it like http://localhost:8000"
        if generation.restart:
            yield f"generation.restart={generation.restart} needs generation.launch=true: a server that rlexp did not start cannot be started again"
    waits = max(generation.timeout, generation.request_timeout)
    if config.cluster.processes > 1 and isinstance(config.strategy, RanksStrategyConfig) and config.strategy.timeout <= waits:
        yield (
            f"strategy.timeout={config.strategy.timeout:g} is not above generation.timeout={generation.timeout:g} and generation.request_timeout="
            f"{generation.request_timeout:g}: the processes would give up waiting for the one that waits for a server; raise strategy.timeout"
        )
    if generation.weight_transfer == "folder" and not generation.transfer_folder and not getattr(config.cluster, "vllm_nodes", 0):
        yield "generation.weight_transfer=folder needs generation.transfer_folder: a folder that trainer and servers see under the same path"
    if generation.transfer_folder and generation.weight_transfer != "folder":
        yield f"generation.transfer_folder is used with generation.weight_transfer=folder only, and it is {generation.weight_transfer}: leave one out"
    if generation.sync_lora == "adapter" and generation.launch is False and generation.weight_transfer == "nccl":
        yield "generation.sync_lora=adapter travels as files: set generation.weight_transfer=shared_memory or folder"


def _launched(generation: VLLMServerGenerationConfig) -> Iterator[str]:
    if not vllm_installed():
        yield f"generation.launch=true needs vLLM, which is not installed: {INSTALL}; or use a server elsewhere with generation.base_url"
    if generation.base_url:
        yield "generation.base_url names servers that run already, and generation.launch=true starts new ones: keep one of the two"
    if generation.host not in LOOPBACK and not generation.expose:
        yield (
            f"generation.host={generation.host} lets other machines reach the server, whose weights anyone who reaches it can replace: "
            "set generation.expose=true if only trusted machines can, or leave generation.host out"
        )
    if generation.devices is not None and len(generation.devices.split(";")) != generation.servers:
        yield f"generation.devices={generation.devices} must name the devices of generation.servers={generation.servers} servers, separated by semicolons"
