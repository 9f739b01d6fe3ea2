"""rollout=sync: generate a batch, then train on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlexp.config.generation import RolloutConfig
from rlexp.records.request import Sampling
from rlexp.records.rollout import GenerationBatch
from rlexp.records.state import TrainerState
from rlexp.rollout.player import Player, Task


class Order(Protocol):
    """rlexp.data.tasks.TaskOrder."""

    def batch(self, number: int) -> Sequence[Task]:
        """The tasks of a generation batch: (epoch, index, task)."""
        ...


class SyncSource:
    """Batch n holds the tasks `order.batch(n)`: the batch number is its whole state.

    sampling: of training. state: asked at each batch for what rewards may know of the progress.
    """

    def __init__(
        self, config: RolloutConfig, *, order: Order, player: Player, num_generations: int, sampling: Sampling, state: Callable[[], TrainerState]
    ) -> None:
        self.config, self.order, self.player = config, order, player
        self.num_generations, self.sampling, self.state = num_generations, sampling, state
        self.number = 0

    def next(self) -> GenerationBatch:
        """The next batch: whole groups with rewards, the same on every rank."""
        batch = self.player.play(
            self.order.batch(self.number),
            num_generations=self.num_generations,
            sampling=self.sampling,
            max_completion_length=self.config.max_completion_length,
            max_turn_length=self.config.max_turn_length,
            purpose="train",
            state=self.state(),
        )
        batch.step_hint = self.number
        self.number += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The number of the next batch."""
        return {"batch": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with that batch."""
        self.number = int(state["batch"])
