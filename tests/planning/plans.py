"""Plans for tests: a config from the command line's overrides, and what they plan."""

from __future__ import annotations

from run_configs import composed
from small_runs import options

from rlexp.build import build_algorithm
from rlexp.planning.memory import Device, Memory, plan_memory

SMALL = (
    *("experiment=none", "data=addition", "reward=[exact_match]", "model=tiny", "model.warm_start_accuracy=0", "data.eval_size=0", "evaluation=none"),
    *("rollout.prompts_per_batch=4", "algorithm.num_generations=4", "rollout.max_completion_length=6"),
)
CPU, GPU = Device(False), Device(True, 80 * 2**30)


def planned(*overrides: str, device: Device = CPU, prompt_tokens: int | None = 20) -> Memory:
    """The plan of SMALL with overrides."""
    config = composed(*options(SMALL, overrides))
    return plan_memory(config, build_algorithm(config), device, prompt_tokens)


def sizes(memory: Memory) -> dict[str, int]:
    """By part, in the phase where it is largest."""
    return {part.name: part.most for part in memory.parts}
