"""The generation batch that is being trained on, as far as it has come: a checkpoint keeps it whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlexp.algorithms.base import Algorithm
from rlexp.batching.terms import Terms, flatten
from rlexp.config.errors import UserError
from rlexp.records.rollout import GenerationBatch
from rlexp.records.sample import Sample
from rlexp.training.plan import Budget, Plan, plan


@dataclass
class Work:
    """A batch, its samples and terms, its plan, and the index of the next step (over all passes)."""

    batch: GenerationBatch
    samples: list[Sample]
    terms: Terms
    plan: Plan
    next: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """of the batch, logged with each of its steps"""
    seconds: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed again: the groups, scored columns (weights have moved), advantages, and the place."""
        terms = self.terms
        return {
            "batch": self.batch,
            "next": self.next,
            "metrics": self.metrics,
            "terms": {"advantage_L": terms.advantage_L, "active_L": terms.active_L, "columns": terms.columns, "extra": terms.extra},
        }


def drop_oversize(samples: list[Sample], batch: GenerationBatch, budget: int, on_oversize: str) -> tuple[list[Sample], int]:
    """Leave out rollouts with a sample, or the sequence a companion reads for it, that fits no row, whole. Returns the samples left and the number left out.

    Their rewards have entered their group's baseline already. on_oversize: error raises UserError, drop counts.
    """
    lengths = [max([len(sample.ids), *(len(context.ids) for context in sample.companions.values())]) for sample in samples]
    long = {sample.rollout: length for sample, length in zip(samples, lengths, strict=True) if length > budget}
    if long and on_oversize == "error":
        number, length = next(iter(long.items()))
        raise UserError(
            f"rollout {number} has {length} tokens{_where(samples, number, budget)}, {length} > trainer.tokens_per_microbatch={budget}: raise "
            "trainer.tokens_per_microbatch, lower rollout.max_completion_length, or set trainer.oversize_samples=drop"
        )
    rollouts = batch.rollouts
    for number in long:
        rollouts[number].dropped = True
    return [sample for sample in samples if sample.rollout not in long], sum(sample.rollout in long for sample in samples)


def _where(samples: list[Sample], number: int, budget: int) -> str:
    """Which companion's sequence is too long, if it is not the sample itself."""
    names = [name for sample in samples if sample.rollout == number for name, context in sample.companions.items() if len(context.ids) > budget]
    own = any(len(sample.ids) > budget for sample in samples if sample.rollout == number)
    return "" if own or not names else f" with the prompt of the {names[0]}"


def begin(batch: GenerationBatch, samples: list[Sample], algorithm: Algorithm, budget: Budget) -> Work:
    """Terms and plan of a batch's samples."""
    terms = flatten(samples)
    return Work(batch, samples, terms, plan(batch, samples, terms, algorithm, budget))


def restore(state: dict[str, Any], algorithm: Algorithm, budget: Budget) -> Work:
    """The work a checkpoint kept. Samples and plan are pure functions of the groups, so they come out as they were."""
    batch: GenerationBatch = state["batch"]
    samples = [sample for sample in algorithm.samples(batch) if not batch.rollouts[sample.rollout].dropped]
    work = begin(batch, samples, algorithm, budget)
    kept = state["terms"]
    work.terms.advantage_L, work.terms.active_L = np.asarray(kept["advantage_L"]), np.asarray(kept["active_L"])
    work.terms.columns, work.terms.extra = kept["columns"], kept["extra"]
    work.next, work.metrics = state["next"], state["metrics"]
    return work
