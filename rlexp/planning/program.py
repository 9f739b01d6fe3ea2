"""What `python -m rlexp.plan` prints."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlexp.algorithms.base import Algorithm
from rlexp.config.errors import UserError
from rlexp.config.run import RunConfig
from rlexp.planning.levers import levers
from rlexp.planning.memory import Device, Memory, plan_memory
from rlexp.planning.probe import TOLERANCE, measured, probe_config
from rlexp.planning.text import levers_text, size_text, table_text

MakeAlgorithm = Callable[[RunConfig], Algorithm]


def this_device() -> Device:
    """The GPU of this machine if it has one, else its CPU."""
    if torch.cuda.is_available():
        return Device(True, torch.cuda.get_device_properties(0).total_memory)
    return Device(False)


def plan(config: RunConfig, make: MakeAlgorithm, device: Device, prompt_tokens: int | None) -> str:
    """The table, and what would make the run smaller. prompt_tokens: the longest prompt, where the user knows it."""

    def of(changed: RunConfig) -> Memory:
        return plan_memory(changed, make(changed), device, prompt_tokens)

    memory = of(config)
    return f"{table_text(memory)}\n{levers_text(memory, levers(memory, of))}"


def check(config: RunConfig, make: MakeAlgorithm, prompt_tokens: int | None) -> tuple[str, bool]:
    """Predicted against measured on this machine, and whether they agree. Raises UserError for what cannot be measured."""
    config = probe_config(config)
    predicted = plan_memory(config, make(config), this_device(), prompt_tokens).total
    found = measured(config)
    off = predicted / found - 1
    agrees = abs(off) <= TOLERANCE
    verdict = "ok" if agrees else "OFF"
    return f"check  predicted {size_text(predicted)}, measured {size_text(found)} above imports: {off:+.1%} (within {TOLERANCE:.0%}) {verdict}", agrees


def show(config: RunConfig, make: MakeAlgorithm, gpu: float | None, prompt_tokens: int | None, checked: bool) -> bool:
    """Print the plan, and the check if it is asked for; False when that disagrees. gpu: GiB of a GPU to plan for; None: this machine."""
    if gpu is not None and gpu <= 0:
        raise UserError(f"--gpu={gpu:g} must be the memory of a GPU in GiB, e.g. --gpu 80")
    print(plan(config, make, this_device() if gpu is None else Device(True, int(gpu * 2**30)), prompt_tokens), flush=True)
    if not checked:
        return True
    text, agrees = check(config, make, prompt_tokens)
    print(text)
    return agrees
