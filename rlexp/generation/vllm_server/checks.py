"""What must be true of a server that somebody else started, said before any work: one message with everything that is missing (rows ASYNC-212...224)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch

from rlexp.config.errors import UserError
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.vllm_server.command import Served, as_arguments, backend_of, shell_line
from rlexp.generation.vllm_server.control import Control, Refused, Unreachable

log = logging.getLogger(__name__)

POLL = 1.0
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""What makes two models different ones, if their configs have it"""


@dataclass(frozen=True)
class Expected:
    """What the trainer has. model: its transformers config."""

    model: Any
    dtype: torch.dtype
    context: int
    transfer: str
    lora_rank: int = 0

    @property
    def name(self) -> str:
        """Of the model, for messages."""
        return str(getattr(self.model, "name_or_path", "") or self.model.model_type)


@dataclass(frozen=True)
class Found:
    """What a server says. context: tokens of prompt and completion together."""

    model: str
    context: int


def check_server(url: str, expected: Expected, config: VLLMServerGenerationConfig, more: Mapping[str, Any]) -> Found:
    """Wait until the server answers, and compare it with what the trainer needs. more: generation.engine_kwargs. Raises UserError."""
    control = Control([url], config.timeout)
    served = Served(expected.name, str(expected.dtype).removeprefix("torch."), config.max_model_length or expected.context, expected.lora_rank)
    line = shell_line(config, served, expected.transfer, more)
    try:
        _wait(control, url, config.timeout, line)
        models = [model for model in control.call(url, "GET", "v1/models")["data"] if not model.get("parent")]
        found = Found(models[0]["id"], int(models[0].get("max_model_len") or expected.context))
        problems = [*_flags(control, url, expected, config), *_model(control, url, expected, str(models[0].get("root") or found.model), found.model)]
        if config.max_model_length is not None and found.context < config.max_model_length:
            problems.append(f"it was started with --max-model-len {found.context}, less than generation.max_model_length={config.max_model_length}")
    finally:
        control.close()
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise UserError(f"the vLLM server at {url} cannot be used:\n{listed}\nA server for this run is started by:\n  {line}")
    return Found(found.model, min(found.context, expected.context, config.max_model_length or found.context))


def _wait(control: Control, url: str, timeout: float, line: str) -> None:
    deadline = time.monotonic() + timeout
    said = False
    while True:
        try:
            control.call(url, "GET", "health", timeout=min(10.0, timeout))
            return
        except (Unreachable, Refused) as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"no vLLM server answered at {url} within generation.timeout={timeout:g} seconds: start it, correct generation.base_url, or let rlexp "
                    f"start one with generation.launch=true. By hand:\n  {line}"
                ) from error
            if not said:
                log.info("waiting for the vLLM server at %s", url)
                said = True
        time.sleep(min(POLL, timeout / 4))


def _flags(control: Control, url: str, expected: Expected, config: VLLMServerGenerationConfig) -> list[str]:
    try:
        answer = control.call(url, "GET", "server_info?config_format=json")
    except Refused as error:
        if error.status != 404:
            raise
        return ["VLLM_SERVER_DEV_MODE=1 is not set in its environment, so it has no endpoints for weights"]
    _warn_of_old(control, url, config)
    settings = answer["vllm_config"]
    model, transfer, lora = settings["model_config"], settings.get("weight_transfer_config") or {}, settings.get("lora_config")
    problems = []
    if model["logprobs_mode"] != "processed_logprobs":
        problems.append(
            f"--logprobs-mode is {model['logprobs_mode']}, so log-probs are not those of the distribution sampled from: set --logprobs-mode processed_logprobs"
        )
    if config.top_k > 0 and 0 <= model["max_logprobs"] < config.top_k:
        problems.append(f"--max-logprobs is {model['max_logprobs']}, less than generation.top_k={config.top_k}: set --max-logprobs -1")
    backend = backend_of(expected.transfer)
    if transfer.get("backend") != backend:
        wanted = " ".join(as_arguments({"weight-transfer-config": json.dumps({"backend": backend})}))
        problems.append(f"its weight transfer is {transfer.get('backend', 'not set up')}: set {wanted} for generation.weight_transfer={expected.transfer}")
    dtype, own = str(model["dtype"]).removeprefix("torch."), str(expected.dtype).removeprefix("torch.")
    if dtype != own:
        problems.append(f"it computes in {dtype} and the trainer in {own}: set --dtype {own}, or generation.dtype={dtype}")
    if config.sync_lora == "adapter" and lora is None:
        problems.append("it serves no adapters (generation.sync_lora=adapter): set --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
    return problems


def _warn_of_old(control: Control, url: str, config: VLLMServerGenerationConfig) -> None:
    """Log-probs of several candidates for each token are slow to serialise; vLLM 0.32 with more API servers does it beside the sampling (row ASYNC-216)."""
    if config.top_k == 0:
        return
    version = str(control.call(url, "GET", "version").get("version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < (0, 32):
        log.warning("the vLLM server at %s is %s: below 0.32 the log-probs of generation.top_k candidates cost 20 to 40 %% of its throughput", url, version)


def _model(control: Control, url: str, expected: Expected, root: str, name: str) -> list[str]:
    """Whether it is the trainer's model: by sizes where the server runs our worker extension, else by name and vocabulary."""
    try:
        sizes = control.call(url, "POST", "collective_rpc", {"method": "rlexp_model"})["results"][0]
    except Refused:
        if PurePath(root).name != PurePath(expected.name).name:
            log.warning("the vLLM server at %s serves %s and the trainer has %s: weights of another model would not fit", url, root, expected.name)
        return _vocabulary(control, url, expected, root, name)
    different = [key for key in SIZES if key in sizes and getattr(expected.model, key, sizes[key]) != sizes[key]]
    if not different:
        return []
    says = ", ".join(f"{key} {sizes[key]} and not {getattr(expected.model, key)}" for key in different)
    return [f"it serves another model ({root}: {says}): set --model {expected.name}"]


def _vocabulary(control: Control, url: str, expected: Expected, root: str, name: str) -> list[str]:
    last = int(expected.model.vocab_size) - 1
    try:
        control.call(url, "POST", "v1/completions", {"model": name, "prompt": [last], "max_tokens": 1})
    except Refused:
        return [f"it serves another model ({root}), which does not know token {last} of the trainer's: set --model {expected.name}"]
    return []
