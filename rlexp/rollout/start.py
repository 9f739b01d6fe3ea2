"""One starting point, and what an agent loop needs to play from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.generation.base import Generator
from rlexp.records.keys import key
from rlexp.records.request import Request, Sampling
from rlexp.records.rollout import Rollout

if TYPE_CHECKING:
    from rlexp.chat.rendering import Renderer


@dataclass(frozen=True)
class Start:
    """Play number `number` of a task. An agent loop returns one rollout for each agent it seats."""

    task: dict[str, Any]
    epoch: int
    index: int
    """of the task in its data"""
    number: int
    """0 .. num_generations - 1"""
    seed: int
    """of the run"""
    purpose: str
    """train or eval; part of the random keys"""
    sampling: Sampling
    max_completion_length: int
    """tokens of the whole rollout"""
    max_turn_length: int | None = None
    """tokens of one request"""
    agents: Mapping[str, str] = field(default_factory=lambda: {"policy": "policy"})
    """who plays: agent -> the policy that samples for it"""
    prompt_limit: int | None = None
    """keep only so many of a prompt's last tokens (data.overlong_prompt=cut_left)"""

    @property
    def joint(self) -> tuple[int, int, int] | None:
        """The key that rollouts of several agents share because they were played together; None for one agent."""
        return (self.epoch, self.index, self.number) if len(self.agents) > 1 else None

    def group(self, agent: str) -> tuple[int, int, str]:
        """Key of the group its rollout is compared in."""
        return (self.epoch, self.index, agent)

    def request(self, ids: np.ndarray, *, policy: str, turn: int = 0, used: int = 0) -> Request:
        """The sampling request of a turn, with its own random key.

        ids: int64 [p], the prompt. turn: number of this request in the play, over all its agents. used: tokens that earlier turns
        of the rollout took of max_completion_length.
        """
        left = self.max_completion_length - used
        most = left if self.max_turn_length is None else min(left, self.max_turn_length)
        place = (self.epoch, self.index, self.number, turn)
        return Request(ids, key(self.seed, self.purpose, *place), most, self.sampling, policy, place)


AgentLoop = Callable[[Start, Generator, "Renderer"], Awaitable[list[Rollout]]]
"""(start, generator, renderer) -> rollouts, one for each agent; their group keys begin with (epoch, index)"""
