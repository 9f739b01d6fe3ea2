"""One optimizer step: forward and backward of its micro-batches, one exchange of totals, then the optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.algorithms.base import Algorithm
from rlexp.batching.packer import MicroBatch
from rlexp.batching.shares import samples_through
from rlexp.batching.terms import Terms
from rlexp.config.errors import UserError
from rlexp.distributed.collectives import Collectives
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.losses.inputs import LossInputs
from rlexp.models.network import RowTensors, row_tensors
from rlexp.models.router import ROUTER
from rlexp.records.keys import key
from rlexp.records.stats import MAX, MEAN, Stat
from rlexp.training.networks import Trainable
from rlexp.training.plan import Plan, Step


@dataclass
class Local:
    """What one rank found in its micro-batches of a step."""

    stats: dict[str, Stat] = field(default_factory=dict)
    bad: list[dict[str, Any]] = field(default_factory=list)
    """micro-batches with a non-finite loss: network and rollouts"""
    first_logp: dict[str, np.ndarray] = field(default_factory=dict)
    """term indices and their log-probs, kept when they serve later passes as old"""
    stop: bool = False

    def add(self, stats: dict[str, Stat]) -> None:
        """Merge the metrics of one micro-batch."""
        for name, stat in stats.items():
            self.stats[name] = self.stats[name].merge(stat) if name in self.stats else stat


def loss_inputs(columns: dict[str, Tensor], micro_batch: MicroBatch, terms: Terms, plan: Plan, *, sample_tokens: int = 1) -> LossInputs:
    """The loss terms of one row, in the dtype and on the device of its columns. A filler row is masked whole.

    sample_tokens: positions of the samples of the whole step, which a loss of the routers is averaged over.
    """
    router = columns.pop(ROUTER, None)
    share = 0.0 if router is None or micro_batch.filler else float(samples_through(micro_batch.row, terms).sum()) / sample_tokens
    like = next(iter(columns.values()))
    term_L = micro_batch.row.term_L
    rollouts, local = np.unique(terms.rollout_L[term_L], return_inverse=True)
    first = np.zeros(len(rollouts), np.int64)
    first[local] = plan.tokens_L[term_L]

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(like.device, like.dtype)

    active = terms.active_L[term_L] & (not micro_batch.filler)
    return LossInputs(
        columns=columns,
        before={name: tensor(values[term_L]) for name, values in terms.columns.items()},
        advantage_L=tensor(terms.advantage_L[term_L]),
        sampler_logp_L=tensor(terms.sampler_logp_L[term_L]),
        active_L=torch.from_numpy(active).to(like.device),
        scale_L=tensor(plan.scale_L[term_L]),
        rollout_L=torch.from_numpy(local.astype(np.int64)).to(like.device),
        tokens_R=tensor(first),
        router=router,
        router_share=share,
        extra={name: tensor(values[term_L]) for name, values in terms.extra.items()},
    )


@torch.no_grad()
def _sampler_stats(inputs: LossInputs) -> dict[str, Stat]:
    """|sampler - trainer at sampling time| over the terms of a first pass: grows when generator and trainer disagree."""
    difference = inputs.where_active((inputs.sampler_logp_L - inputs.old_logp_L).abs())
    name = "sampling/sampling_logp_difference"
    largest = float(difference.max()) if len(difference) else 0.0
    return {f"{name}/mean": Stat(MEAN, float(difference.sum()), float(inputs.active_L.sum())), f"{name}/max": Stat(MAX, largest)}


class StepRunner:
    """Runs the micro-batches of steps and steps the optimizers."""

    def __init__(self, trainables: dict[str, Trainable], algorithm: Algorithm, strategy: SingleStrategy, *, seed: int, dropout: bool, dumps: Path) -> None:
        self.trainables, self.algorithm, self.strategy = trainables, algorithm, strategy
        self.seed, self.dropout, self.dumps = seed, dropout, dumps

    @property
    def collectives(self) -> Collectives:
        """The exchange between this run's processes."""
        return self.strategy.collectives

    def backward(self, step: Step, terms: Terms, plan: Plan, number: int, first_pass: bool) -> Local:
        """Gradients of all micro-batches of this rank. number: optimizer steps made so far."""
        local = Local()
        for model, micro_batches in step.micro_batches.items():
            trainable, objective = self.trainables[model], self.algorithm.objective(model)
            names = sorted(self.algorithm.needs.columns[model])
            for i, micro_batch in enumerate(micro_batches):
                if self.dropout:
                    torch.manual_seed(key(self.seed, "dropout", number, model, i, self.collectives.rank) % 2**63)
                last = i == len(micro_batches) - 1
                with self._row(trainable, micro_batch, terms, names) as row, self.strategy.micro_batch(trainable.wrapped, last=last):
                    columns = trainable.wrapped(row, names)
                    inputs = loss_inputs(columns, micro_batch, terms, plan, sample_tokens=step.sample_tokens[model])
                    result = objective(inputs)
                    self.strategy.backward(result.loss)
                if micro_batch.filler:
                    continue
                local.add(result.stats)
                if "logp" in columns and first_pass:
                    local.add(_sampler_stats(inputs))
                    local.first_logp[f"{model}/{i}"] = np.stack([micro_batch.row.term_L, columns["logp"].detach().double().cpu().numpy()])
                if not math.isfinite(float(result.loss.detach())):
                    local.bad.append(self._describe(model, micro_batch, terms, columns, inputs, number))
        return local

    @contextmanager
    def _row(self, trainable: Trainable, micro_batch: MicroBatch, terms: Terms, names: list[str]) -> Iterator[RowTensors]:
        """The row with what its companions say of it, whose heads can be called inside."""
        device = trainable.network.device
        row = row_tensors(micro_batch.row, terms, device, shares=ROUTER in names)
        with ExitStack() as opened:
            for name in sorted(self.algorithm.needs.beside & trainable.companions.keys()):
                companion = trainable.companions[name]
                opened.enter_context(self.strategy.opened(companion.network))
                row.companions[name] = (companion.network, companion.hidden(row_tensors(micro_batch.companions[name], terms, device)))
            yield row

    def _describe(self, model: str, micro_batch: MicroBatch, terms: Terms, columns: dict[str, Tensor], inputs: LossInputs, number: int) -> dict[str, Any]:
        """Save what a non-finite loss was made of."""
        self.dumps.mkdir(parents=True, exist_ok=True)
        path = self.dumps / f"step_{number + 1:06d}_rank{self.collectives.rank}.pt"
        numbers = {"advantage": inputs.advantage_L, "sampler_logp": inputs.sampler_logp_L, **columns, **inputs.before}
        torch.save({"row": micro_batch.row, "terms": {name: value.detach().cpu() for name, value in numbers.items()}}, path)
        rollouts = sorted(set(terms.rollout_L[micro_batch.row.term_L].tolist()))
        return {"model": model, "rollouts": rollouts, "path": f"{path.parent.name}/{path.name}"}

    def reduce(self, local: Local, stop: bool) -> Local:
        """The step's totals over all ranks by one exchange: metrics, non-finite losses, and whether any rank was asked to stop."""
        local.stop = stop
        total = Local()
        for part in self.collectives.gather_objects(Local(local.stats, local.bad, {}, local.stop)):
            total.add(part.stats)
            total.bad.extend(part.bad)
            total.stop = total.stop or part.stop
        total.first_logp = local.first_logp
        return total

    def refuse_non_finite(self, totals: Local, number: int) -> None:
        """Stop on every rank when any micro-batch had a non-finite loss."""
        if totals.bad:
            places = "; ".join(f"{bad['model']}: rollouts {bad['rollouts']} (saved in {bad['path']})" for bad in totals.bad)
            raise UserError(
                f"the loss is not finite at step {number + 1}, {places}. Look for log-probs of -inf or NaN in the dump, or lower optimizer.learning_rate"
            )

    def optimize(self, step: Step, rate: float) -> dict[str, float]:
        """Step every optimizer that has trained terms; returns gradient norms. Without any term nothing is called."""
        norms = {}
        for model, trainable in self.trainables.items():
            if not step.micro_batches[model]:
                continue
            for group in trainable.optimizer.param_groups:
                group["lr"] = rate
            norms[model] = self.strategy.step(trainable.optimizer, trainable.parameters, trainable.max_grad_norm)
        if not norms:
            return {}
        only = len(self.trainables) == 1
        return {("grad_norm" if only else f"{model}/grad_norm"): norm for model, norm in norms.items()}


def recorded_old(local: Local, terms: Terms, collectives: Collectives) -> np.ndarray:
    """Log-probs of a first pass as the old column of later passes, equal on every rank, [L]."""
    old = np.zeros(terms.count)
    for pair in local.first_logp.values():
        old[pair[0].astype(np.int64)] = pair[1]
    return collectives.sum_array(old)


def finite_terms(samples: list[Any], terms: Terms, batch_rollouts: list[Any], on_missing: str, number: int, dumps: Path) -> Iterator[tuple[str, float]]:
    """Refuse (or mask) terms whose sampler gave no number. Yields metrics.

    on_missing: stop raises UserError with step, rollout and position after saving a dump; mask takes the term out of the loss.
    """
    bad = np.flatnonzero(~np.isfinite(terms.sampler_logp_L))
    if not len(bad):
        return
    if on_missing == "mask":
        terms.active_L[bad] = False
        yield "sampling/missing_logprobs", float(len(bad))
        return
    dumps.mkdir(parents=True, exist_ok=True)
    path = dumps / f"step_{number + 1:06d}_sampler.pt"
    term = int(bad[0])
    sample = int(terms.sample_L[term])
    rollout = batch_rollouts[int(terms.rollout_L[term])]
    torch.save({"sample": samples[sample], "rollout": rollout}, path)
    position = term - int(terms.offsets_S[sample])
    raise UserError(
        f"the generator gave no log-prob at step {number + 1}, rollout {(*rollout.group, rollout.index)}, token {position} "
        f"(saved in {path.parent.name}/{path.name}). Fix the generator, or set generation.on_missing_logprob=mask to leave such tokens out"
    )
