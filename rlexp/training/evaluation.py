"""Evaluation on the held-out tasks: one greedy completion each, and sampled ones for pass@k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rlexp.config.training import EvaluationConfig
from rlexp.records.request import Sampling
from rlexp.records.rollout import GenerationBatch
from rlexp.records.state import TrainerState
from rlexp.training.metrics import batch_metrics, pass_at_k


class Plays(Protocol):
    """What evaluation needs of rlexp.rollout.player.Player."""

    def play(
        self, tasks: Sequence[tuple[int, int, dict[str, Any]]], *, num_generations: int, sampling: Sampling, purpose: str, state: TrainerState
    ) -> GenerationBatch:
        """Rollouts of the tasks, scored, equal on every rank."""
        ...

    def close(self) -> None:
        """End its event loop."""
        ...


class Evaluator:
    """Plays the held-out tasks. accuracy is the share of tasks whose greedy rollout gets 1.0 from the accuracy term."""

    def __init__(self, config: EvaluationConfig, player: Plays, tasks: Sequence[dict[str, Any]], sampling: Sampling, accuracy_term: str) -> None:
        self.config, self.player, self.sampling, self.accuracy_term = config, player, sampling, accuracy_term
        self.tasks = [(0, index, task) for index, task in enumerate(tasks)]

    @property
    def enabled(self) -> bool:
        """Whether there is anything to evaluate."""
        return self.config.name != "none" and bool(self.tasks)

    def due(self, step: int) -> bool:
        """Whether an evaluation belongs after this step."""
        return self.enabled and self.config.steps is not None and step % self.config.steps == 0

    def run(self, state: TrainerState) -> tuple[dict[str, float], GenerationBatch]:
        """Metrics and the greedy rollouts. The same tasks, in the same order, each time."""
        greedy = self.player.play(self.tasks, num_generations=1, sampling=self.sampling.greedy, purpose="eval", state=state)
        metrics = batch_metrics(greedy)
        metrics.pop("frac_reward_zero_std", None)
        metrics["accuracy"] = float(np.mean([self._correct(rollout.rewards) for rollout in greedy.rollouts]))
        if self.config.num_generations:
            metrics.update(self._pass_at(state))
        return metrics, greedy

    def _correct(self, rewards: dict[str, float | None]) -> bool:
        return rewards.get(self.accuracy_term) == 1.0

    def _pass_at(self, state: TrainerState) -> dict[str, float]:
        count = self.config.num_generations
        sampling = replace(self.sampling, temperature=self.config.temperature)
        sampled = self.player.play(self.tasks, num_generations=count, sampling=sampling, purpose="eval_sampled", state=state)
        correct = [sum(self._correct(rollout.rewards) for rollout in group.rollouts) for group in sampled.groups]
        sizes = sorted({k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= count} | {count})
        return {f"pass@{k}": float(np.mean([pass_at_k(hits, count, k) for hits in correct])) for k in sizes}
