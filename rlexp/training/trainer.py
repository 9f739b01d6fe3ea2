"""The one loop, for every algorithm, loss, schedule and number of agents."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlexp.algorithms.base import Algorithm
from rlexp.config.run import RunConfig
from rlexp.distributed.collectives import Collectives
from rlexp.records.rollout import GenerationBatch, Rollout
from rlexp.records.sample import Needs
from rlexp.records.state import TrainerState
from rlexp.training import checkpoint
from rlexp.training.evaluation import Evaluator
from rlexp.training.faults import fault_point
from rlexp.training.metrics import batch_metrics
from rlexp.training.networks import Trainable
from rlexp.training.optimizer import learning_rate
from rlexp.training.plan import Budget
from rlexp.training.progress import Progress, Stopwatch
from rlexp.training.score import score
from rlexp.training.step import Local, StepRunner, finite_terms, recorded_old
from rlexp.training.work import Work, begin, drop_oversize, restore

log = logging.getLogger(__name__)


class Source(Protocol):
    """A rollout source: decides when rollouts are made."""

    def next(self, state: TrainerState) -> GenerationBatch:
        """Whole groups, the same on every rank."""
        ...

    def publish(self, version: int) -> None:
        """New weights are there."""
        ...

    def epoch(self) -> float:
        """Passes over the tasks so far."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Data position and whatever is under way."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""
        ...


class RunLog(Protocol):
    """Where metrics and rollouts go; does nothing on ranks other than 0."""

    def log(self, step: int, split: str, metrics: dict[str, float], time_s: float) -> None:
        """One line of metrics."""
        ...

    def rollouts(self, step: int, split: str, rollouts: list[Rollout]) -> None:
        """Rollouts of a generation batch or an evaluation."""
        ...

    def flush(self) -> int:
        """Bring metrics.jsonl to the disk; returns its length in bytes."""
        ...


@dataclass
class Parts:
    """What a trainer is made of; rlexp.build fills it."""

    source: Source
    algorithm: Algorithm
    trainables: dict[str, Trainable]
    runner: StepRunner
    evaluator: Evaluator
    log: RunLog
    collectives: Collectives
    folder: Path
    """the run's folder"""
    total_steps: int
    stop_requested: Callable[[], bool]
    fingerprint: str
    """of the data, kept in checkpoints"""


class Trainer:
    """Runs the loop from wherever a checkpoint left it."""

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self.config, self.parts = config, parts
        self.progress, self.watch = Progress(), Stopwatch()
        self.work: Work | None = None
        rank, world = parts.collectives.rank, parts.collectives.world
        self.budget = Budget(config.trainer.steps_per_batch, config.trainer.tokens_per_microbatch, config.rollout.max_completion_length, rank, world)
        self.passes = config.algorithm.num_iterations

    # the loop

    def run(self) -> str:
        """Train to the end, to sweep.pause_at, or until asked to stop. Returns "finished", "paused" or "preempted"."""
        if self.progress.step == 0 and self.progress.evaluated_step < 0 and self.config.evaluation.at_start:
            self._evaluate()
        until = min(self.parts.total_steps, self.config.sweep.pause_at or self.parts.total_steps)
        while self.progress.step < until:
            self.work = self.work or self._next_work()
            stop = self._train_step(self.work)
            if self.work.next == len(self.work.plan.steps) * self.passes:
                self.work = None
            self._after_step(stop or self.progress.step == until)
            if stop and self.progress.step < until:
                return "preempted"
        return "finished" if self.progress.step >= self.parts.total_steps else "paused"

    def _next_work(self) -> Work:
        parts, needs = self.parts, self._needs()
        with self._fault("next"):
            batch = parts.source.next(self.state())
        since = time.perf_counter()
        with self._fault("samples"):
            samples, dropped = drop_oversize(parts.algorithm.samples(batch), batch, self.budget.tokens, self.config.trainer.oversize_samples)
        with self._fault("plan"):
            work = begin(batch, samples, parts.algorithm, self.budget)
        self.watch.add("pack", since)
        since = time.perf_counter()
        missing = dict(finite_terms(samples, work.terms, batch.rollouts, self.config.generation.on_missing_logprob, self.progress.step, parts.runner.dumps))
        with self._fault("score"):
            score(work.plan.steps, work.terms, parts.trainables, needs.before, parts.collectives, moved=False, every_row=parts.runner.strategy.sharded)
        with self._fault("advantages"):
            parts.algorithm.advantages(batch, samples, work.terms)
            parts.algorithm.masks(batch, work.terms)
        self.watch.add("score", since)
        work.metrics = {**batch_metrics(batch), **missing}
        if dropped:
            work.metrics["batch/dropped_oversize_count"] = float(dropped)
        work.seconds = batch.seconds
        self._count_batch(batch, dropped)
        return work

    def _needs(self) -> Needs:
        """What must be scored first: the old log-probs too when weights move between the first and the last step of a batch."""
        needs = self.parts.algorithm.needs
        if self.budget.steps_per_batch > 1:
            return Needs(before=needs.before | {"old"})
        return needs

    def _train_step(self, work: Work) -> bool:
        parts, progress = self.parts, self.progress
        step = work.plan.steps[work.next % len(work.plan.steps)]
        first_pass = work.next < len(work.plan.steps)
        rate = learning_rate(self.config.optimizer, progress.step, parts.total_steps)
        since = time.perf_counter()
        with self._fault("backward"):
            local = parts.runner.backward(step, work.terms, work.plan, progress.step, first_pass)
        with self._fault("reduce"):
            totals = parts.runner.reduce(local, parts.stop_requested())
            parts.runner.refuse_non_finite(totals, progress.step)
        if first_pass and self.passes > 1 and "old" not in work.terms.columns:
            work.terms.columns["old"] = recorded_old(local, work.terms, parts.collectives)
        with self._fault("optimizer"):
            norms = parts.runner.optimize(step, rate)
        metrics = {**{name: stat.result() for name, stat in totals.stats.items()}, **norms, "learning_rate": rate}
        with self._fault("follow"):
            if norms:
                for trainable in parts.trainables.values():
                    for companion in trainable.companions.values():
                        companion.follow(progress.step + 1)
        with self._fault("after_step"):
            parts.algorithm.after_step(metrics)
        progress.step, progress.version, work.next = progress.step + 1, progress.version + 1, work.next + 1
        progress.forwarded, progress.trained = progress.forwarded + step.forwarded_tokens, progress.trained + step.trained_tokens
        with self._fault("publish"):
            parts.source.publish(progress.version)
        self.watch.add("update", since)
        self._log_step(work, totals, metrics, first_pass)
        return totals.stop

    def _after_step(self, leaving: bool) -> None:
        """Evaluation and checkpoint, when due. The last step always gets both; leaving: the run pauses or stops here, so that it is saved."""
        step, config = self.progress.step, self.config.checkpoint
        last = step >= self.parts.total_steps
        better = False
        if self.parts.evaluator.enabled and (last or self.parts.evaluator.due(step)):
            with self._fault("evaluate"):
                better = self._evaluate()
        if config.name != "none" and (last or leaving or better or step % config.steps == 0):
            with self._fault("checkpoint"):
                self.save()

    # metrics

    def state(self) -> TrainerState:
        """What rewards may know."""
        return TrainerState(self.progress.step, self.parts.total_steps, self.parts.source.epoch())

    def _count_batch(self, batch: GenerationBatch, dropped: int) -> None:
        progress = self.progress
        progress.batches += 1
        progress.generated += batch.generated_tokens
        progress.prompts += batch.prompt_tokens
        progress.dropped += dropped

    def _log_step(self, work: Work, totals: Local, metrics: dict[str, float], first_pass: bool) -> None:
        progress, log = self.progress, self.parts.log
        fresh = work.next == 1
        seconds = self.watch.reset()
        progress.seconds += seconds["step"]
        phases = {**{name: value for name, value in work.seconds.items() if fresh}, **{name: value for name, value in seconds.items() if name != "step"}}
        counted = {"num_tokens": float(progress.generated + progress.prompts), "epoch": self.parts.source.epoch(), "step_time": seconds["step"]}
        metrics = {**metrics, **work.metrics, **counted}
        metrics.setdefault("loss", 0.0)
        metrics.update({f"perf/{name}_s": value for name, value in phases.items()})
        metrics["perf/tokens_per_s"] = (work.batch.generated_tokens if fresh else 0) / max(seconds["step"], 1e-9)
        with self._fault("log"):
            log.log(progress.step, "train", metrics, progress.seconds)
            if fresh:
                log.rollouts(progress.step, "train", work.batch.rollouts)

    def _evaluate(self) -> bool:
        """Evaluate now; returns whether it is a new best by checkpoint.metric."""
        progress, name = self.progress, self.config.checkpoint.metric
        if not self.parts.evaluator.enabled or progress.evaluated_step == progress.step:
            return False
        state = TrainerState(progress.step, self.parts.total_steps, self.parts.source.epoch(), training=False)
        metrics, batch = self.parts.evaluator.run(state)
        seconds = self.watch.reset()
        progress.seconds += seconds["step"]
        self.parts.log.log(progress.step, "eval", {**metrics, "perf/evaluation_s": seconds["step"]}, progress.seconds)
        self.parts.log.rollouts(progress.step, "eval", batch.rollouts)
        progress.evaluated_step = progress.step
        kept = {**metrics, "step": float(progress.step)}
        progress.evaluation.setdefault("start", kept)
        progress.evaluation["end"] = kept
        value = metrics.get(name)
        if value is not None and math.isnan(value):  # logged by a reward
            value = None
        if value is None and self.config.checkpoint.keep_best and progress.step == 0:
            log.warning("checkpoint.metric=%s is no metric of this evaluation, so no checkpoint can be the best (there are: %s)", name, ", ".join(metrics))
        better = value is not None and (not progress.best or value > progress.best[0][0])
        if better:
            progress.evaluation["best"] = kept
        if value is not None and progress.step > 0:
            ranked = sorted([*progress.best, [value, float(progress.step)]], key=lambda pair: (-pair[0], pair[1]))
            progress.best = ranked[: max(self.config.checkpoint.keep_best, 1)]
        return better and progress.step > 0 and self.config.checkpoint.keep_best > 0

    # checkpoints

    def save(self) -> None:
        """Write a checkpoint of everything that continues the run bit for bit."""
        parts, progress, config = self.parts, self.progress, self.config.checkpoint
        source_state = parts.collectives.gather_objects(parts.source.state_dict())
        folder = parts.folder / "checkpoints"
        sharded, first = parts.runner.strategy.sharded, parts.collectives.rank == 0
        if first or sharded:
            progress.metrics_bytes = parts.log.flush()
            state = {
                "progress": progress.state_dict(),
                "trainables": {name: trainable.state_dict() for name, trainable in parts.trainables.items()},
                "algorithm": parts.algorithm.state_dict(),
                "source": source_state,
                "work": self.work.state_dict() if self.work is not None else None,
                "fingerprint": parts.fingerprint,
            }
            weights = {name: trainable.trained_state() for name, trainable in parts.trainables.items()}
            ranks = parts.collectives if sharded else checkpoint.ALONE
            checkpoint.save(folder, progress.step, weights, state, {"version": progress.version, "best": progress.best}, ranks)
        if first:
            checkpoint.retain(folder, config.keep_last, [int(step) for _, step in progress.best[: config.keep_best]])
        parts.collectives.barrier()

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of this run."""
        parts = self.parts
        checkpoint.load_weights(path, {name: trainable.network for name, trainable in parts.trainables.items()})
        state = checkpoint.load_state(path)
        checkpoint.same_data(path, state["fingerprint"], parts.fingerprint)
        self.progress = Progress(**state["progress"])
        for name, trainable in parts.trainables.items():
            trainable.load_state_dict(state["trainables"][name])
        parts.algorithm.load_state_dict(state["algorithm"])
        sources = state["source"]
        if len(sources) != parts.collectives.world:
            log.warning(
                "%s was made by %d processes and goes on with %d: results are the same up to rounding", path.name, len(sources), parts.collectives.world
            )
        parts.source.load_state_dict(sources[parts.collectives.rank % len(sources)])
        parts.source.publish(self.progress.version)
        self.work = restore(state["work"], parts.algorithm, self.budget) if state["work"] is not None else None

    def restart_companions(self) -> None:
        """After weights were loaded into a new run: its companions start from them too."""
        for trainable in self.parts.trainables.values():
            for companion in trainable.companions.values():
                companion.restart()

    def _fault(self, call: str) -> AbstractContextManager[None]:
        return fault_point(self.progress.step, call, self.parts.collectives.rank)
