"""A generation batch to optimizer steps of micro-batches: cut, count, scale, pack.

Every rank computes the same plan from the same groups, without a collective, and picks its own rows. Rows are planned once and
serve every pass over the batch, scoring included: two layouts of one sample differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlexp.algorithms.base import Algorithm
from rlexp.batching.packer import MicroBatch, pack
from rlexp.batching.terms import Terms
from rlexp.losses.reduction import Counts, scales
from rlexp.records.rollout import GenerationBatch
from rlexp.records.sample import Sample


@dataclass
class Step:
    """One optimizer step: this rank's micro-batches by network, equally many on every rank."""

    micro_batches: dict[str, list[MicroBatch]]
    forwarded_tokens: int
    """of all ranks, fillers left out"""
    trained_tokens: int
    sample_tokens: dict[str, int] = field(default_factory=dict)
    """by network, positions of its samples on all ranks, a shared prefix counted once for each of them"""


@dataclass
class Plan:
    """The steps of a batch, and per loss term its scale and its rollout's number of terms."""

    steps: list[Step]
    scale_L: np.ndarray
    tokens_L: np.ndarray


@dataclass(frozen=True)
class Budget:
    """How a batch is cut. steps_per_batch: equally many rollouts each. tokens: most forwarded tokens of a row."""

    steps_per_batch: int
    tokens: int
    max_completion_length: int
    rank: int = 0
    world: int = 1


def step_of_rollouts(count: int, steps: int) -> np.ndarray:
    """The step each rollout belongs to, groups laid end to end and cut into equal parts, int64 [R]."""
    return np.arange(count) * steps // max(count, 1)


def _counts(owners_L: np.ndarray, learns_R: np.ndarray, tokens_R: np.ndarray, longest: int) -> Counts:
    """Counted over the rollouts of the step that this network learns from, idle ones too, on all ranks."""
    return Counts(tokens_L=tokens_R[owners_L], tokens=int(tokens_R[learns_R].sum()), rollouts=int(learns_R.sum()), max_completion_length=longest)


def _terms_of(chosen: Sequence[int], terms: Terms) -> np.ndarray:
    parts = [np.arange(terms.offsets_S[number], terms.offsets_S[number + 1]) for number in chosen]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _count_microbatches(counts: Counts, rows: list[MicroBatch], term_L: np.ndarray) -> None:
    size = np.zeros(int(term_L.max()) + 1, np.int64)
    for micro_batch in rows:
        size[micro_batch.row.term_L] = len(micro_batch.row.term_L)
    counts.microbatch_tokens_L, counts.microbatches = size[term_L], len(rows)


def plan(batch: GenerationBatch, samples: Sequence[Sample], terms: Terms, algorithm: Algorithm, budget: Budget) -> Plan:
    """Steps of micro-batches and the scale of every term.

    The batch's rollouts, groups laid end to end, are cut into budget.steps_per_batch parts of equally many rollouts. Raises
    ValueError when a sample alone exceeds budget.tokens.
    """
    rollouts = batch.rollouts
    step_R = step_of_rollouts(len(rollouts), budget.steps_per_batch)
    tokens_R = np.array([algorithm.trained_tokens(rollout) for rollout in rollouts], dtype=np.int64)
    models_R = [algorithm.models_of(rollout) for rollout in rollouts]
    terms.step_R = step_R
    terms.step_L = step_R[terms.rollout_L] if terms.count else np.zeros(0, np.int64)
    scale_L, tokens_L = np.zeros(terms.count), np.ones(terms.count, np.int64)
    steps = []
    for step in range(budget.steps_per_batch):
        micro_batches: dict[str, list[MicroBatch]] = {}
        sample_tokens: dict[str, int] = {}
        forwarded = trained = 0
        for model in algorithm.networks:
            chosen = [number for number, sample in enumerate(samples) if sample.model == model and step_R[sample.rollout] == step]
            kinds = sorted(samples[chosen[0]].companions) if chosen else ()
            by_rank = pack(samples, terms, chosen, budget=budget.tokens, world=budget.world, companions=kinds)
            micro_batches[model] = by_rank[budget.rank]
            sample_tokens[model] = sum(int(samples[number].position_L[-1]) + 1 for number in chosen if samples[number].terms)
            if not chosen:
                continue
            rows = [micro_batch for mine in by_rank for micro_batch in mine if not micro_batch.filler]
            term_L = _terms_of(chosen, terms)
            learns_R = np.array([model in models for models in models_R], dtype=bool) & (step_R == step)
            counts = _counts(terms.rollout_L[term_L], learns_R, tokens_R, budget.max_completion_length)
            _count_microbatches(counts, rows, term_L)
            scale_L[term_L], tokens_L[term_L] = scales(algorithm.reduction(model), counts), counts.tokens_L
            forwarded += sum(micro_batch.row.tokens for micro_batch in rows)
            trained += len(term_L)
        steps.append(Step(micro_batches, forwarded, trained, sample_tokens))
    return Plan(steps, scale_L, tokens_L)
