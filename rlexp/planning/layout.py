"""How many tokens a step has and how they lie in rows, from the config and, where they are at hand, the tasks' prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlexp import registry
from rlexp.algorithms.base import Algorithm
from rlexp.batching.packer import MicroBatch, pack
from rlexp.batching.terms import Terms, flatten
from rlexp.chat.rendering import Renderer
from rlexp.config.data import AdditionDataConfig, FilesDataConfig, ReasoningGymDataConfig
from rlexp.config.derived import rollouts_per_batch
from rlexp.config.errors import UserError
from rlexp.config.run import RunConfig
from rlexp.data.overlong import fit_prompts
from rlexp.data.tasks import seed_of
from rlexp.records.sample import Context, Sample

UNKNOWN_TEMPLATE = 64
"""tokens that the teacher's templates add, where no tokenizer is at hand to count them"""


@dataclass(frozen=True)
class Prompts:
    """The longest prompts that are planned for."""

    tokens: int
    source: str
    """where the number is from"""
    teacher: int = 0
    """tokens of the longest prompt that a companion reads in place of it; 0: companions read the samples"""


def prompts_of(config: RunConfig, algorithm: Algorithm, tokenizer: PreTrainedTokenizerBase | None, context: int, given: int | None) -> Prompts:
    """given: what the user says; else the tasks say where they and the tokenizer are on this machine, else data.max_prompt_length, else what the
    context and a row leave. Raises UserError when a prompt does not fit."""
    completion, row = config.rollout.max_completion_length, config.trainer.tokens_per_microbatch
    if given is not None:
        if not 0 < given < context:
            raise UserError(f"--prompt-tokens={given} must be at least 1 and less than the model's context of {context}")
        found, source = given, "--prompt-tokens"
    elif tokenizer is not None and isinstance(config.data, (AdditionDataConfig, FilesDataConfig, ReasoningGymDataConfig)):
        found, source = _measured(config, algorithm, tokenizer, context), "longest of the tasks"
    elif config.data.max_prompt_length is not None:
        found, source = config.data.max_prompt_length, "data.max_prompt_length"
    else:
        found, source = max(1, min(context, row) - completion), "what context and row leave; --prompt-tokens says better"
    teacher = algorithm.longest_teacher_prompt(found, completion)
    if algorithm.needs.beside and not teacher and getattr(config.algorithm, "teacher_context", "") == "reprompt":
        teacher = min(found + completion + UNKNOWN_TEMPLATE, config.algorithm.max_reprompt_len)  # type: ignore[attr-defined]
    return Prompts(found, source, teacher)


def _measured(config: RunConfig, algorithm: Algorithm, tokenizer: PreTrainedTokenizerBase, context: int) -> int:
    """The longest prompt of the tasks, as it will be rendered."""
    data = registry.DATA.load(config.data.name)(config.data, seed=seed_of(config.data, config.run.seed))
    renderer = Renderer(tokenizer, config.generation.chat_template_kwargs, config.data.system_prompt)
    longest, mode = config.data.max_prompt_length, config.data.overlong_prompt
    data, found = fit_prompts(data, lambda prompt: renderer.render(prompt).ids, context=context, max_length=longest, mode=mode)
    algorithm.prepare(renderer, context, data)
    return found


@dataclass(frozen=True)
class Layout:
    """One step, at its largest: every prompt as long as the longest, every completion as long as is allowed, nothing shared but prompts."""

    prompts: Prompts
    completion: int
    rollouts: int
    """of one generation batch, on all ranks"""
    ranks: int
    samples: int
    """rollouts of one step on one rank"""
    micro_batches: int
    row: int
    """samples of one row"""
    generations: int

    @property
    def forwarded(self) -> int:
        """Forwarded tokens of a step, on all ranks."""
        return self.ranks * self._cost(self.samples, self.prompts.tokens)

    @property
    def trained(self) -> int:
        """Trained tokens of a step, on all ranks."""
        return self.ranks * self.samples * self.completion

    @property
    def row_tokens(self) -> int:
        """Forwarded tokens of one row."""
        return self._cost(self.row, self.prompts.tokens)

    def _cost(self, samples: int, prompt: int) -> int:
        # the last token of a sample predicts nothing and is not forwarded
        return math.ceil(samples / self.generations) * prompt + samples * (self.completion - 1)


def layout_of(config: RunConfig, prompts: Prompts, ranks: int, context: int) -> Layout:
    """The fewest rows that hold a rank's share of a step, made even. Raises UserError when not even one rollout fits."""
    budget, completion, generations = config.trainer.tokens_per_microbatch, config.rollout.max_completion_length, config.algorithm.num_generations
    completion = max(1, min(completion, context - prompts.tokens))
    rollouts = rollouts_per_batch(config)
    samples = math.ceil(rollouts / config.trainer.steps_per_batch / ranks)

    def fits(count: int) -> bool:
        row = math.ceil(count / generations) * prompts.tokens + count * (completion - 1)
        return max(row, count * (prompts.teacher + completion - 1) if prompts.teacher else 0) <= budget

    if not fits(1):
        raise UserError(
            f"one rollout of {prompts.tokens} prompt tokens ({prompts.source}) and {completion} completion tokens does not fit into "
            f"trainer.tokens_per_microbatch={budget}: raise it, or plan for shorter prompts with --prompt-tokens"
        )
    rows = 1
    while not fits(math.ceil(samples / rows)):
        rows = max(rows + 1, math.ceil(samples / _most(fits, math.ceil(samples / rows))))
    return Layout(prompts, completion, rollouts, ranks, samples, rows, math.ceil(samples / rows), generations)


def _most(fits: object, upper: int) -> int:
    """The largest number of samples that fits, by bisection; one does, `upper` does not."""
    low, high = 1, upper
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)  # type: ignore[operator]
    return low


def row_of(layout: Layout, companions: frozenset[str], model: str) -> tuple[MicroBatch, Terms]:
    """A row of the layout and its terms. companions: those that read sequences of their own."""
    samples = samples_of(layout, companions, model)
    terms = flatten(samples)
    (made,) = pack(samples, terms, range(len(samples)), budget=2**62, companions=sorted(companions))
    return made[0], terms


def samples_of(layout: Layout, companions: frozenset[str], model: str) -> list[Sample]:
    """The samples of a row, with made-up token ids."""
    samples = []
    for number in range(layout.row):
        group = number // layout.generations
        completion = np.arange(layout.completion, dtype=np.int64) + number * layout.completion + layout.row
        sample = Sample(
            model=model,
            rollout=number,
            ids=np.concatenate([np.full(layout.prompts.tokens, group, np.int64), completion]),
            position_L=np.arange(layout.completion) + layout.prompts.tokens - 1,
            target_L=np.zeros(layout.completion, np.int64),
            sampler_logp_L=np.zeros(layout.completion, np.float32),
        )
        for name in companions:
            sample.companions[name] = _second(layout, number, completion, sample)
        samples.append(sample)
    return samples


def _second(layout: Layout, number: int, completion: np.ndarray, sample: Sample) -> Context:
    teacher = layout.prompts.teacher
    if not teacher:
        return Context(sample.ids, sample.position_L)
    return Context(np.concatenate([np.full(teacher, number, np.int64), completion]), np.arange(layout.completion) + teacher - 1)
