"""What can be wrong with generation by vLLM, told from the config alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rlexp.config import derived, vllm_server
from rlexp.config.generation import ContinuousBatchingGenerationConfig
from rlexp.config.model import LoraConfig
from rlexp.config.run import RunConfig
from rlexp.config.values import WrongType, convert_value
from rlexp.config.vllm import INSTALL, EngineGenerationConfig, VLLMGenerationConfig, vllm_installed

OWN_KEYS = {
    "model": "set model",
    "dtype": "set generation.dtype",
    "max_model_len": "set generation.max_model_length",
    "tensor_parallel_size": "set generation.tensor_parallel_size",
    "weight_transfer_config": "set generation.weight_transfer",
    "host": "set generation.host",
    "port": "set generation.port",
    "logprobs_mode": "only log-probs of the distribution that was sampled from can be trained with",
    "generation_config": "a model folder must not bring sampling settings along",
}
"""arguments of vLLM's engine that rlexp must know or set itself -> why they are no engine_kwargs"""


def problems(config: RunConfig) -> Iterator[str]:
    """Rows GRPO-189...207, GRPO-262, GRPO-264."""
    generation = config.generation
    if isinstance(generation, ContinuousBatchingGenerationConfig):
        yield from _continuous_batching(config)
    if not isinstance(generation, EngineGenerationConfig):
        return
    if isinstance(generation, VLLMGenerationConfig):
        yield from _in_process(config, generation)
    yield from vllm_server.problems(config)
    if generation.max_model_length is not None and generation.max_model_length <= config.rollout.max_completion_length:
        yield (
            f"generation.max_model_length={generation.max_model_length} leaves no room for a prompt beside rollout.max_completion_length="
            f"{config.rollout.max_completion_length}: it must hold the longest prompt and the completion; raise it or leave it out"
        )
    if generation.structured_outputs_regex is not None:
        try:
            re.compile(generation.structured_outputs_regex)
        except re.error as error:
            yield f"generation.structured_outputs_regex={generation.structured_outputs_regex} is no regular expression ({error}): correct it"
    yield from _engine_kwargs(generation)
    if generation.sync_lora == "adapter":
        if not isinstance(config.peft, LoraConfig):
            yield f"generation.sync_lora=adapter needs an adapter, and peft={config.peft.name} has none: leave it out, or set peft=lora"
        elif config.peft.r > 512:
            yield f"generation.sync_lora=adapter: vLLM serves adapters of rank 512 at most, and peft.r={config.peft.r}: set generation.sync_lora=merged"


def _engine_kwargs(generation: EngineGenerationConfig) -> Iterator[str]:
    try:
        given = convert_value(generation.engine_kwargs, Any) or {}
    except WrongType:  # refused elsewhere
        return
    for name in given:
        if (reason := OWN_KEYS.get(name.replace("-", "_"))) is not None:
            yield f"generation.engine_kwargs.{name} cannot be used: {reason}"


def _in_process(config: RunConfig, generation: VLLMGenerationConfig) -> Iterator[str]:
    if not vllm_installed():
        yield f"generation=vllm needs vLLM, which is not installed: {INSTALL}"
    processes, shared = config.cluster.processes_per_node, generation.tensor_parallel_size
    if processes % shared:
        yield (
            f"generation.tensor_parallel_size={shared} does not divide cluster.processes_per_node={processes}: the processes of the trainer share "
            f"the engines, {shared} each; choose a divisor of {processes}"
        )


def _continuous_batching(config: RunConfig) -> Iterator[str]:
    cut = derived.truncated(config)
    if config.generation.stop:
        yield "generation.stop does not go with generation=continuous_batching, which ends completions at token ids only: use generation.stop_ids"
    if any(option.startswith("generation.min_p") for option in cut):
        yield "generation.min_p does not go with generation=continuous_batching, which does not know it: leave it out"
    if derived.sampling_value(config, "repetition_penalty") != 1:
        yield "generation.repetition_penalty does not go with generation=continuous_batching, which drops it: leave it out"
