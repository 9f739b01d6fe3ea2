"""rollout=sync: generate a batch, then train on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from rlexp.config.generation import SyncRolloutConfig
from rlexp.records.request import Sampling
from rlexp.records.rollout import GenerationBatch
from rlexp.records.state import TrainerState
from rlexp.rollout.player import Player, Task
from rlexp.rollout.refill import refilled


class Order(Protocol):
    """rlexp.data.tasks.TaskOrder."""

    def batch(self, number: int) -> Sequence[Task]:
        """The tasks of a generation batch: (epoch, index, task)."""
        ...

    def epoch_of(self, batches: int) -> float:
        """Epochs that so many batches are."""
        ...


class SyncSource:
    """A batch holds the tasks `order.batch(n)`, with refill those of several n: the next n is its whole state. sampling: of training."""

    greedy_baseline = False
    """whether each task is also played greedily, for Group.baseline; set when the run is built"""

    def __init__(self, config: SyncRolloutConfig, *, order: Order, player: Player, sampling: Sampling, num_generations: int) -> None:
        self.config, self.order, self.player = config, order, player
        self.sampling, self.num_generations = sampling, num_generations
        self.number = 0

    def next(self, state: TrainerState) -> GenerationBatch:
        """The next batch: whole groups with rewards, the same on every rank. state: what rewards may know of the progress."""
        batch = self._play(state)
        return refilled(batch, lambda: self._play(state), self.config.max_refills) if self.config.refill else batch

    def _play(self, state: TrainerState) -> GenerationBatch:
        tasks = self.order.batch(self.number)
        batch = self.player.play(tasks, num_generations=self.num_generations, sampling=self.sampling, purpose="train", state=state)
        if self.greedy_baseline:
            self._play_greedily(batch, tasks, state)
        batch.step_hint = self.number
        self.number += 1
        return batch

    def _play_greedily(self, batch: GenerationBatch, tasks: Sequence[Task], state: TrainerState) -> None:
        """Give each group the reward of its greedy rollout, which is not trained on; its tokens and seconds count."""
        greedy = self.player.play(tasks, num_generations=1, sampling=self.sampling.greedy, purpose="greedy", state=state)
        rewards = {group.key: group.rollouts[0].reward for group in greedy.groups}
        for group in batch.groups:
            group.baseline = rewards[group.key]
        known = [reward for reward in rewards.values() if not math.isnan(reward)]
        batch.metrics["reward_greedy"] = (sum(known), float(len(known)))
        batch.generated_tokens += greedy.generated_tokens
        batch.prompt_tokens += greedy.prompt_tokens
        batch.seconds = {name: seconds + greedy.seconds[name] for name, seconds in batch.seconds.items()}

    def publish(self, version: int) -> None:
        """The weights have changed."""
        self.player.publish(version)

    def epoch(self) -> float:
        """Epochs generated so far."""
        return self.order.epoch_of(self.number)

    def state_dict(self) -> dict[str, Any]:
        """The number of the next batch."""
        return {"batch": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with that batch."""
        self.number = int(state["batch"])
