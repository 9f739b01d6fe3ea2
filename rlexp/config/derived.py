"""Numbers that follow from a config, computed without torch. They are printed at start and never written back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlexp.config.algorithm import PolicyGradientConfig
from rlexp.config.data import AdditionDataConfig, FilesDataConfig
from rlexp.config.names import run_name
from rlexp.config.run import RunConfig
from rlexp.config.values import WrongType, convert_value

_COUNTABLE_BYTES = 64 * 2**20
"""Larger files are not read just to count their tasks"""


def task_count(config: RunConfig) -> int | None:
    """Training tasks as far as the config alone tells; None when they must be loaded first.

    Addition has as many as asked for or as exist; a jsonl file of moderate size is counted, less the held-out tasks that are split
    off.
    """
    data = config.data
    if isinstance(data, AdditionDataConfig):
        left = 10 ** (2 * data.digits) - data.eval_size
        return min(data.size, left) if left > 0 else None
    if not isinstance(data, FilesDataConfig):
        return None
    path = Path(data.path)
    if path.suffix != ".jsonl" or not path.is_file() or path.stat().st_size > _COUNTABLE_BYTES:
        return None
    lines = sum(1 for line in path.read_bytes().splitlines() if line.strip())
    held_out = 0 if data.eval_path else data.eval_size
    if held_out >= lines:
        return None  # refused when the file is read, with the reason
    return lines - held_out if data.size is None else min(data.size, lines - held_out)


@dataclass(frozen=True)
class Schedule:
    """How many optimizer steps a run takes (rows GRPO-006, GRPO-094); the number of rollouts per task does not enter."""

    tasks: int | None
    """training tasks; None: unknown until loaded, or a stream"""
    batches_per_epoch: int | None
    """tasks // rollout.prompts_per_batch: an incomplete last batch is left out"""
    left_over: int
    """tasks of each epoch that fill no batch"""
    steps_per_generation_batch: int
    """trainer.steps_per_batch x algorithm.num_iterations"""
    steps: int | None
    """optimizer steps of the run: trainer.max_steps, or trainer.epochs of the tasks"""


def schedule(config: RunConfig, tasks: int | None) -> Schedule:
    """The step counts. tasks: training tasks, None when unknown."""
    per_batch = config.rollout.prompts_per_batch
    batches = None if tasks is None else tasks // per_batch
    each = config.trainer.steps_per_batch * config.algorithm.num_iterations
    steps = config.trainer.max_steps
    if steps is None and batches is not None:
        steps = math.ceil(config.trainer.epochs * batches - 1e-9) * each
    return Schedule(tasks, batches, 0 if tasks is None else tasks % per_batch, each, steps)


def too_few_tasks(config: RunConfig, tasks: int | None) -> str | None:
    """The problem with data that do not fill one batch (checked again once the data are loaded), or None."""
    if tasks is None or tasks >= config.rollout.prompts_per_batch:
        return None
    return (
        f"data has {tasks} training tasks, fewer than rollout.prompts_per_batch={config.rollout.prompts_per_batch}: "
        f"no batch would ever be full; set rollout.prompts_per_batch={max(tasks, 1)} or less, or give more tasks"
    )


def most_tasks(config: RunConfig) -> int | None:
    """An upper bound of the training tasks, or None: data.size where the number itself is unknown."""
    known = task_count(config)
    return known if known is not None else getattr(config.data, "size", None)


def rollouts_per_batch(config: RunConfig) -> int:
    """Rollouts of one generation batch."""
    return config.rollout.prompts_per_batch * config.algorithm.num_generations


def epsilon_high(config: RunConfig) -> float | None:
    """The upper clip range that applies: loss.epsilon_high, or loss.epsilon when it is null; None for a loss without one."""
    high = getattr(config.loss, "epsilon_high", None)
    return high if high is not None else getattr(config.loss, "epsilon", None)


def sampling_value(config: RunConfig, name: str) -> Any:
    """A sampling option as it applies: generation.generation_kwargs beats the key. One that has the wrong type is refused elsewhere."""
    try:
        given = convert_value(config.generation.generation_kwargs, Any) or {}
    except WrongType:
        given = {}
    value = given.get(name) if isinstance(given, dict) else None
    return value if isinstance(value, (int, float)) else getattr(config.generation, name)


def truncated(config: RunConfig) -> list[str]:
    """The options that leave out tokens before one is sampled, as `key=value`."""
    off = {"top_k": (0,), "top_p": (1,), "min_p": (None, 0)}
    return [f"generation.{name}={sampling_value(config, name):g}" for name, values in off.items() if sampling_value(config, name) not in values]


def has_policy_term(config: RunConfig) -> bool:
    """Whether the loss has a policy term whose weights could be corrected: not with distillation alone."""
    return isinstance(config.algorithm, PolicyGradientConfig) and getattr(config.algorithm, "distillation_weight", 0.0) < 1


def correction_mode(config: RunConfig) -> str:
    """What correction=auto stands for, or the mode that was chosen.

    auto corrects when a sampler with numerics of its own (vLLM) samples for a GRPO-type objective: any loss but rloo's, whose paper and
    peers have none, and dppo's, whose ratio is to the sampler already. vespo takes weights of tokens only.
    """
    if config.correction.name != "auto":
        return config.correction.name
    grpo_type = has_policy_term(config) and config.loss.name != "rloo" and not config.loss.ratio_to_sampler
    if not config.generation.own_numerics or not grpo_type:
        return "none"
    return "token_truncate" if config.loss.takes_correction else "sequence_mask"


def correction_text(config: RunConfig) -> str:
    """The correction in words, with its bounds."""
    mode, settings = correction_mode(config), config.correction
    chosen = " (auto)" if settings.name == "auto" else ""
    if mode == "none":
        return f"none{chosen}"
    low, high = ("none" if bound is None else f"{bound:g}" for bound in (settings.clip_min, settings.clip_max))
    return f"{mode}{chosen}, weights from {low} to {high}{', geometric mean' if settings.normalize else ''}"


def accuracy_term(config: RunConfig) -> str | None:
    """The reward term whose value 1.0 counts as correct: evaluation.accuracy, or the first."""
    return config.evaluation.accuracy or next(iter(config.reward.terms), None)


def evaluates(config: RunConfig) -> bool:
    """Whether the run has an evaluation at all."""
    return config.evaluation.name != "none" and config.data.eval_size > 0


def plan(config: RunConfig, tasks: int | None) -> list[tuple[str, str]]:
    """The derived values as (name, text), in the order they are printed."""
    numbers = schedule(config, tasks)
    unknown = "unknown until the data are loaded"
    rollouts = rollouts_per_batch(config)
    rows = [
        ("run", run_name(config)),
        ("training tasks", str(tasks) if tasks is not None else unknown),
        ("generation batch", f"{config.rollout.prompts_per_batch} prompts x {config.algorithm.num_generations} = {rollouts} rollouts"),
        ("step", f"{rollouts // config.trainer.steps_per_batch} rollouts; steps from each generation batch: {numbers.steps_per_generation_batch}"),
        ("batches per epoch", str(numbers.batches_per_epoch) if numbers.batches_per_epoch is not None else unknown),
        ("optimizer steps", str(numbers.steps) if numbers.steps is not None else unknown),
        ("longest completion", f"{config.rollout.max_completion_length} tokens"),
    ]
    high = epsilon_high(config)
    if high is not None:
        low = getattr(config.loss, "epsilon", None)
        rows.append(("ratio clipped to", f"{1 - low:g} .. {1 + high:g}") if low is not None else ("importance weight", f"at most {high:g}"))
    precision = config.trainer.precision
    rows += [
        ("sampler correction", correction_text(config)),
        ("reference model", f"yes, beta={config.algorithm.beta:g}" if config.algorithm.beta else "none (algorithm.beta=0)"),
        ("precision", "bf16 on a GPU, fp32 on a CPU" if precision == "auto" else precision),
        ("processes", str(config.cluster.processes)),
        ("accuracy", f"share of {config.data.eval_size} held-out tasks where {accuracy_term(config)} is 1.0" if evaluates(config) else "no evaluation"),
    ]
    return rows
