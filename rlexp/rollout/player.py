"""Plays tasks: samples rollouts, scores them, and gives every rank the same groups. Training and evaluation use it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from rlexp.config.generation import RolloutConfig
from rlexp.generation.base import BadPrompt, Generator
from rlexp.records.request import Sampling
from rlexp.records.rollout import GenerationBatch, Rollout
from rlexp.records.state import TrainerState
from rlexp.rollout.agent_loops.single_turn import single_turn
from rlexp.rollout.exchange import Exchange, Part, block, merged, on_every_rank, without_tasks
from rlexp.rollout.overlap import play_and_score
from rlexp.rollout.start import AgentLoop, Start
from rlexp.rollout.wave import play_together

if TYPE_CHECKING:
    from rlexp.chat.rendering import Renderer

Task = tuple[int, int, dict[str, Any]]
"""(epoch, index, task)"""


class Scorer(Protocol):
    """rlexp.rewards.runner.RewardRunner: fills in rewards, reward and extra of each rollout."""

    @property
    def overlap(self) -> bool:
        """Whether tasks are scored one by one, as soon as they are complete."""
        ...

    async def score(self, rollouts: list[Rollout], state: TrainerState) -> dict[str, tuple[float, float]]:
        """Score a whole batch at once. Returns what the rewards logged: name -> (sum, count)."""
        ...

    async def call(self, rollouts: list[Rollout], state: TrainerState) -> Any:
        """Score a part of a batch, for `fill`."""
        ...

    def fill(self, scores: Sequence[Any]) -> dict[str, tuple[float, float]]:
        """Fill in what `call` returned for all parts, in their order. Returns what `score` returns."""
        ...


class Sync(Protocol):
    """rlexp.generation.weight_sync.push.WeightSync."""

    @property
    def stale(self) -> bool:
        """Whether the generator's weights are not the announced ones; the same on every rank."""
        ...

    def announce(self, version: int) -> None:
        """The trainer's weights are now of this version."""
        ...

    def bring(self) -> float:
        """Send them if the generator has others; the seconds it took."""
        ...

    def rest(self) -> None:
        """Nothing is sampled until the next `bring`."""
        ...

    def lost(self) -> None:
        """The generator has no weights any more."""
        ...


class Player:
    """Turns tasks into scored groups.

    seed: of the run. agents: agent -> policy; None is one agent. agent_loop: how a task is played; None is a single turn.
    prompt_limit: TaskData.prompt_limit. sync: brings the generator's own copy of the weights up to date; None when it reads the trainer's.
    sampling: a context in which the generator can read the trainer's weights, entered by all ranks together; None when it always can.
    Close it at the end: it keeps one event loop, so that async rewards and tools may keep their connections from batch to batch.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        generator: Generator,
        renderer: Renderer,
        rewards: Scorer,
        seed: int,
        collectives: Exchange,
        agents: Mapping[str, str] | None = None,
        agent_loop: AgentLoop | None = None,
        prompt_limit: int | None = None,
        sync: Sync | None = None,
        sampling: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.config, self.seed, self.collectives, self.sync = config, seed, collectives, sync
        self.generator, self.renderer, self.rewards = generator, renderer, rewards
        self.sampling = sampling or nullcontext
        self.agents = agents or {"policy": "policy"}
        self.agent_loop = agent_loop or single_turn
        self.prompt_limit = prompt_limit
        self._loop = asyncio.Runner()
        self._worker = ThreadPoolExecutor(1, "sampling")  # its thread starts with the first wave it gets

    def play(self, tasks: Sequence[Task], *, num_generations: int, sampling: Sampling, purpose: str, state: TrainerState) -> GenerationBatch:
        """Play each task num_generations times.

        The list of all plays is cut into one contiguous block for each rank; groups come back whole, in the order of the tasks, the
        same on every rank. purpose: "train", "eval", ...; a part of the random keys. Raises on every rank when one fails; UserError
        for a prompt that does not fit the context.
        """
        while True:
            try:
                return self._play(tasks, num_generations, sampling, purpose, state)
            except Exception:
                if not self._recovered():
                    raise

    def _play(self, tasks: Sequence[Task], num_generations: int, sampling: Sampling, purpose: str, state: TrainerState) -> GenerationBatch:
        lengths = (self.config.max_completion_length, self.config.max_turn_length)
        starts = [
            Start(task, epoch, index, number, self.seed, purpose, sampling, *lengths, self.agents, self.prompt_limit)
            for epoch, index, task in tasks
            for number in range(num_generations)
        ]
        # ranks that share an engine play the same rollouts, wave for wave, and the first of them hands over the result
        share = getattr(self.generator, "ranks_per_engine", 1)
        mine = block(starts, self.collectives.rank // share, self.collectives.world // share)
        seconds = self._bring()
        parts = on_every_rank(self.collectives, lambda: self._part(mine, state))[::share]
        if self.sync is not None:
            self.sync.rest()
        batch = merged(parts, {(epoch, index): task for epoch, index, task in tasks})
        return dataclasses.replace(batch, seconds={**batch.seconds, **seconds})

    def _recovered(self) -> bool:
        """Whether the generator's engine had died and runs again (generation.restart); it then needs all weights. The same on every rank."""
        recover = getattr(self.generator, "recover", None)
        if recover is None or self.sync is None or not recover():
            return False
        self.sync.lost()
        return True

    def publish(self, version: int) -> None:
        """The trainer's weights have changed. A generator that reads them live stamps what it samples; another gets them before it samples again."""
        if self.sync is None:
            self.generator.set_version(version)
        else:
            self.sync.announce(version)

    def _bring(self) -> dict[str, float]:
        """Bring the generator's weights up to date; the others wait for the rank that sends. Raises on every rank when one fails."""
        if self.sync is None:
            return {}
        return {"weight_sync": max(on_every_rank(self.collectives, self.sync.bring))}

    def close(self) -> None:
        """Close the event loop, the thread that samples and what the generator holds."""
        close = getattr(self.generator, "close", None)
        if close is not None:
            close()
        self._loop.close()
        self._worker.shutdown()

    def _part(self, starts: Sequence[Start], state: TrainerState) -> Part:
        with self.sampling():
            return self._played(starts, state)

    def _played(self, starts: Sequence[Start], state: TrainerState) -> Part:
        began = time.perf_counter()
        loops = [self._play_one(start) for start in starts]
        if self.rewards.overlap:
            tasks = [(start.epoch, start.index) for start in starts]
            played, scores, sampled = self._loop.run(play_and_score(loops, tasks, lambda mine: self.rewards.call(mine, state), self._worker))
            rollouts = [rollout for several in played for rollout in several]
            metrics = self.rewards.fill(scores)
        else:
            rollouts = [rollout for several in self._loop.run(play_together(loops)) for rollout in several]
            sampled = time.perf_counter()
            metrics = self._loop.run(self.rewards.score(rollouts, state)) if rollouts else {}
        counters = getattr(self.generator, "counters", None)
        if counters is not None:
            metrics = {**metrics, **counters()}
        return Part(without_tasks(rollouts), metrics, {"generation": sampled - began, "reward": time.perf_counter() - sampled})

    async def _play_one(self, start: Start) -> list[Rollout]:
        try:
            return await self.agent_loop(start, self.generator, self.renderer)
        except BadPrompt as error:
            raise BadPrompt(f"{start.purpose} task {start.index} of epoch {start.epoch}: {error}") from error
