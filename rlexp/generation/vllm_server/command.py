"""The command line of a vLLM server: for the one that rlexp starts, and to show to who starts it by hand. Torch-free."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlexp.config.model import LoraConfig
from rlexp.config.run import RunConfig
from rlexp.config.values import convert_value
from rlexp.config.vllm import lora_rank
from rlexp.config.vllm_server import VLLMServerGenerationConfig

MODULE = "vllm.entrypoints.openai.api_server"
"""The `vllm` program of the CPU distribution cannot find its own version; this module takes the same flags"""
ENGINE = "rlexp"
"""Name of our weight transfer engine inside vLLM (rlexp.generation.weight_sync.engine_plugin)"""


@dataclass(frozen=True)
class Served:
    """What a server must know of the policy."""

    model: str
    """folder or hub name"""
    dtype: str
    context: int | None
    """None: the model's"""
    lora_rank: int = 0
    """of the largest adapter, one of the sizes vLLM knows; 0: it serves no adapter"""
    has_weights: bool = True
    """whether the folder holds weights; without, the first sync brings them"""
    on_cpu: bool = False
    """whether the server will run on a CPU"""


def backend_of(transfer: str) -> str:
    """vLLM's name of a weight transfer."""
    return transfer if transfer in ("nccl", "ipc") else ENGINE


def server_environment(config: VLLMServerGenerationConfig, transfer: str, number: int = 0) -> dict[str, str]:
    """Environment variables of a server, beside those it inherits."""
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": str(config.cpu_cache_gib), "VLLM_NO_USAGE_STATS": "1"}
    if config.devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = config.devices.split(";")[number].strip()
    if transfer == "ipc":  # handles of GPU memory travel pickled
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if config.sync_lora == "adapter":
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    return environment


def server_flags(config: VLLMServerGenerationConfig, served: Served, transfer: str) -> dict[str, Any]:
    """The flags that a run needs of its server, by name; True is a flag without a value. engine_kwargs come last and win."""
    flags: dict[str, Any] = {
        "model": served.model,
        "dtype": served.dtype,
        "max-model-len": served.context,
        "model-impl": config.model_impl,
        "weight-transfer-config": json.dumps({"backend": backend_of(transfer)}),
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": -1,
        "generation-config": "vllm",  # a model folder must not bring sampling settings along
        "tensor-parallel-size": config.tensor_parallel_size,
        "gpu-memory-utilization": config.gpu_memory_utilization,
    }
    if served.on_cpu:  # eager: compiling takes longer than it saves; whole prompts: see rlexp.generation.vllm.generator.whole_prompts
        flags |= {"enforce-eager": True, "no-enable-chunked-prefill": True, "max-num-batched-tokens": max(served.context or 0, 4096)}
    if not served.has_weights:
        flags["load-format"] = "dummy"
    if served.lora_rank:
        flags |= {"enable-lora": True, "max-loras": 1, "max-lora-rank": served.lora_rank}
    if backend_of(transfer) == ENGINE:
        flags["worker-extension-cls"] = "rlexp.generation.weight_sync.engine_plugin.WorkerView"
    return flags


def as_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them. False leaves a flag out."""
    words: list[str] = []
    for name, value in flags.items():
        name = "--" + name.replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not False and value is not None:
            words += [name, value if isinstance(value, str) else json.dumps(value)]
    return words


def server_command(config: VLLMServerGenerationConfig, served: Served, transfer: str, *, host: str, port: int, more: Mapping[str, Any]) -> list[str]:
    """Program and arguments of a server. more: generation.engine_kwargs."""
    flags = {**server_flags(config, served, transfer), **{name.replace("_", "-"): value for name, value in more.items()}}
    return [sys.executable, "-m", MODULE, *as_arguments({**flags, "host": host, "port": port})]


def line_for(config: RunConfig) -> str:
    """The line that starts a server for a run that does not start its own. Without the model: dtype and folder as far as the config tells them."""
    generation = config.generation
    assert isinstance(generation, VLLMServerGenerationConfig)
    dtype = generation.dtype
    if dtype == "auto":
        dtype = "bfloat16" if config.trainer.precision == "bf16" else config.model.dtype
    rank = lora_rank(config.peft.r) if isinstance(config.peft, LoraConfig) and generation.sync_lora == "adapter" else 0
    served = Served(getattr(config.model, "path", None) or f"FOLDER_OF_{config.model.name}", dtype, generation.max_model_length, rank)
    transfer = "shared_memory" if generation.weight_transfer == "auto" else generation.weight_transfer
    return shell_line(generation, served, transfer, convert_value(generation.engine_kwargs, Any) or {})


def shell_line(config: VLLMServerGenerationConfig, served: Served, transfer: str, more: Mapping[str, Any]) -> str:
    """The same as a line for a shell, for a server that somebody starts by hand."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in server_environment(config, transfer).items()]
    command = server_command(config, served, transfer, host=config.host, port=config.port or 8000, more=more)
    return " ".join([*environment, "python", *map(shlex.quote, command[1:])])
