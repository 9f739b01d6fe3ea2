"""What can be wrong with generation by vLLM, told from the config alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlexp.config import derived, vllm_server
from rlexp.config.generation import ContinuousBatchingGenerationConfig
from rlexp.config.model import LoraConfig
from rlexp.config.run import RunConfig
from rlexp.config.vllm import INSTALL, EngineGenerationConfig, VLLMGenerationConfig, vllm_installed


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
    if generation.sync_lora == "adapter":
        if not isinstance(config.peft, LoraConfig):
            yield f"generation.sync_lora=adapter needs an adapter, and peft={config.peft.name} has none: leave it out, or set peft=lora"
        elif config.peft.r > 512:
            yield f"generation.sync_lora=adapter: vLLM serves adapters of rank 512 at most, and peft.r={config.peft.r}: set generation.sync_lora=merged"


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
