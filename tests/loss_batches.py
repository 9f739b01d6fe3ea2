"""Batches of loss terms for tests, cut into micro-batches and run through the real objective with the real scales."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from run_configs import composed
from torch import Tensor

from rlexp.config.algorithm import LossConfig
from rlexp.config.losses import CovarianceLossConfig
from rlexp.losses.correction import Correction
from rlexp.losses.covariance import chosen_terms, covariances
from rlexp.losses.entropy import high_entropy, mean_scale
from rlexp.losses.inputs import LossInputs
from rlexp.losses.objective import ObjectiveResult, PolicyObjective
from rlexp.losses.reduction import Counts, scales
from rlexp.records.stats import Stat
from rlexp.registry import LOSSES

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo")
"""losses of the PPO-clip family that take a ratio of any level"""
OWN_RATIO = ("vespo", "gmpo", "dppo", "clip_cov", "kl_cov", "rloo")
"""losses with a ratio of their own and no option for it"""
LOSS_NAMES = (*CLIPPED, "cispo", "sapo", "luspo", *OWN_RATIO)
LEVELS = ("token", "sequence", "sequence_token")
"""of the ratio, where a loss leaves it open"""
OWN = "own"
"""the level of the others, and of a loss whose option is left out"""
CASES = [
    *((name, level) for name in LOSS_NAMES for level in LEVELS if name not in OWN_RATIO and (name != "luspo" or level == "sequence")),
    *((name, OWN) for name in OWN_RATIO),
]
"""every allowed (loss, ratio level)"""


@functools.cache
def _composed(name: str) -> Any:
    return composed("experiment=none", f"loss={name}").loss


def loss_config(name: str, **overrides: Any) -> Any:
    """The config that loss=NAME composes, with fields replaced (composing each combination would take seconds)."""
    return dataclasses.replace(_composed(name), **overrides)


def own_options(name: str, **options: Any) -> dict[str, Any]:
    """Those of the options that loss=NAME has; no ratio level where it is the loss's own."""
    return {key: value for key, value in options.items() if hasattr(_composed(name), key) and value != OWN}


def objective(name: str, *, beta: float = 0.0, bias: bool = True, correction: Correction | None = None, **overrides: Any) -> PolicyObjective:
    """The objective that loss=NAME builds."""
    config = loss_config(name, **overrides)  # composing registers the losses
    made = PolicyObjective(LOSSES.load(config.name), config, beta=beta, use_bias_correction_kl=bias)
    made.correction = correction
    return made


@dataclass
class Batch:
    """A step. All per-term tensors [L]; advantage [R]. old None: the first pass over fresh rollouts."""

    logp: Tensor
    rollout: Tensor
    advantage: Tensor
    active: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    entropy: Tensor | None = None
    sampler: Tensor | None = None
    scored_entropy: Tensor | None = None
    """before the first step; None: as now"""
    draws: Tensor | None = None
    """a random number of each term; None: all equal"""
    max_completion_length: int = 4

    @property
    def tokens(self) -> Tensor:
        """Active terms of each rollout, [R]."""
        return torch.bincount(self.rollout[self.active], minlength=len(self.advantage))


def batch_of(
    logp: Sequence[Sequence[float]],
    advantage: Sequence[float],
    *,
    old: Sequence[Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
    active: Sequence[Sequence[int]] | None = None,
    max_completion_length: int = 4,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """A batch from one list of numbers per rollout."""

    def flat(rows: Sequence[Sequence[float]] | None) -> Tensor | None:
        return None if rows is None else torch.tensor([x for row in rows for x in row], dtype=dtype)

    numbers = flat(logp)
    mask = torch.ones(len(numbers), dtype=torch.bool) if active is None else torch.tensor([bool(x) for row in active for x in row], dtype=torch.bool)
    rollout = torch.tensor([i for i, row in enumerate(logp) for _ in row], dtype=torch.int64)
    return Batch(numbers, rollout, torch.tensor(advantage, dtype=dtype), mask, flat(old), flat(reference), max_completion_length=max_completion_length)


def random_batch(seed: int, *, spread: float = 0.4, fresh: bool = False) -> Batch:
    """Six rollouts of 0 to 6 terms, one of them wholly masked, some single terms masked, terms of all rollouts interleaved."""
    rng = np.random.default_rng(seed)
    lengths = [3, 6, 1, 0, 4, 5]
    rollout = rng.permutation(np.repeat(np.arange(6), lengths))
    size = len(rollout)
    active = (rng.random(size) > 0.2) & (rollout != 4)
    logp = -rng.exponential(1.0, size)
    return Batch(
        logp=torch.from_numpy(logp),
        rollout=torch.from_numpy(rollout),
        advantage=torch.from_numpy(rng.normal(size=6)),
        active=torch.from_numpy(active),
        old=None if fresh else torch.from_numpy(logp + rng.normal(0, spread, size)),
        reference=torch.from_numpy(logp + rng.normal(0, 0.5, size)),
        entropy=torch.from_numpy(rng.random(size)),
        sampler=torch.from_numpy(logp + rng.normal(0, spread, size)),
        scored_entropy=torch.from_numpy(rng.random(size)),
        draws=torch.from_numpy(rng.random(size)),
        max_completion_length=7,
    )


def masks(batch: Batch, config: LossConfig) -> dict[str, Tensor]:
    """What needs the whole step, as Algorithm.masks attaches it: the entropy mask, the bonus's scale, the terms chosen by covariance."""
    entropy_L = torch.zeros_like(batch.logp) if batch.entropy is None else batch.entropy
    scored_L = (entropy_L if batch.scored_entropy is None else batch.scored_entropy).double().numpy()
    active_L, step_L, top = batch.active.numpy(), np.zeros(len(batch.logp), np.int64), config.top_entropy_quantile
    keep_L = high_entropy(scored_L, active_L, step_L, top) if top < 1 else active_L
    made = {"entropy_keep": keep_L, "entropy_scale": mean_scale(keep_L, step_L)}
    if isinstance(config, CovarianceLossConfig):
        old_L = (batch.logp if batch.old is None else batch.old).double().numpy()
        draws_L = np.zeros(len(old_L)) if batch.draws is None else batch.draws.numpy()
        cov_L = covariances(old_L, batch.advantage.double().numpy()[batch.rollout.numpy()], active_L, step_L)
        made["cov_chosen"] = chosen_terms(config, cov_L, active_L, step_L, draws_L)
    return {name: torch.from_numpy(np.asarray(x_L)).to(batch.logp.dtype) for name, x_L in made.items()}


def micro_batches(
    batch: Batch, config: LossConfig, leaf: Tensor, parts: Sequence[Sequence[int]], entropy_leaf: Tensor | None = None, only: Sequence[int] | None = None
) -> list[LossInputs]:
    """The batch cut into rows, each holding the rollouts that a part names.

    leaf, entropy_leaf: the log-probs and entropies that gradients are taken of. only: numbers of the parts to make; None: all.
    """
    entropy_L = torch.zeros_like(batch.logp) if batch.entropy is None else batch.entropy
    entropy_leaf = entropy_L if entropy_leaf is None else entropy_leaf
    extra = masks(batch, config)
    inputs = []
    for part in parts if only is None else [parts[number] for number in only]:
        terms = torch.tensor([i for i, r in enumerate(batch.rollout.tolist()) if r in part], dtype=torch.int64)
        local = torch.tensor([list(part).index(r) for r in batch.rollout[terms].tolist()], dtype=torch.int64)
        counts = Counts(
            tokens_L=batch.tokens[batch.rollout[terms]].numpy(),
            tokens=int(batch.tokens.sum()),
            rollouts=len(batch.advantage),
            max_completion_length=batch.max_completion_length,
            microbatch_tokens_L=np.full(len(terms), int(batch.active[terms].sum())),
            microbatches=len(parts),
        )
        before = {name: x[terms] for name, x in (("old", batch.old), ("reference", batch.reference)) if x is not None}
        inputs.append(
            LossInputs(
                columns={"logp": leaf[terms], "entropy": entropy_leaf[terms]},
                before=before,
                advantage_L=batch.advantage[batch.rollout[terms]],
                sampler_logp_L=(batch.logp if batch.sampler is None else batch.sampler)[terms],
                active_L=batch.active[terms],
                scale_L=torch.from_numpy(scales(config.reduction, counts)).to(leaf.dtype),
                rollout_L=local,
                tokens_R=batch.tokens[list(part)],
                extra={name: x[terms] for name, x in extra.items()},
            )
        )
    return inputs


@dataclass
class Outcome:
    """What a step came to: loss, gradient with respect to each term's log-prob (and entropy), metrics."""

    loss: float
    grad: Tensor
    metrics: dict[str, float]
    entropy_grad: Tensor | None = None


def step(objective_: PolicyObjective, batch: Batch, parts: Sequence[Sequence[int]] | None = None) -> Outcome:
    """Run a step in micro-batches (default: one) and add them up as the trainer does."""
    leaf = batch.logp.clone().requires_grad_()
    entropy = (torch.zeros_like(batch.logp) if batch.entropy is None else batch.entropy).clone().requires_grad_()
    whole = [list(range(len(batch.advantage)))]
    results: list[ObjectiveResult] = []
    for inputs in micro_batches(batch, objective_.config, leaf, whole if parts is None else parts, entropy):
        results.append(objective_(inputs))
        results[-1].loss.backward()
    stats: dict[str, Stat] = {}
    for result in results:
        for name, stat in result.stats.items():
            stats[name] = stats[name].merge(stat) if name in stats else stat
    loss = sum(float(result.loss.detach()) for result in results)
    return Outcome(loss, leaf.grad, {name: stat.result() for name, stat in stats.items()}, entropy.grad)
