"""What one agent did from one starting point, and the groups that are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlexp.records.turn import LENGTH, Turn


@dataclass
class Rollout:
    """One rollout. It gets one advantage."""

    task: dict[str, Any]
    """the dataset row, prompt included (never changed: rewards get copies)"""
    group: tuple
    """key of its group: (epoch, task index, agent), extended by the node for turn trees"""
    index: int
    """place within the group"""
    agent: str = "policy"
    policy: str = "policy"
    """the model that sampled it and is trained on it"""
    joint: tuple | None = None
    """key shared by rollouts that were played together"""
    turns: list[Turn] = field(default_factory=list)
    prompt: Any = ""
    """what rewards see as prompt: text, or a list of messages"""
    completion: Any = ""
    """what rewards see as completion: text, or a list of messages"""
    prompt_text: str = ""
    """rendered prompt as text"""
    completion_text: str = ""
    """decoded completion without special tokens"""
    completion_text_special: str = ""
    """decoded completion with special tokens, without the final EOS"""
    rewards: dict[str, float | None] = field(default_factory=dict)
    reward: float = float("nan")
    """weighted total; NaN when no function scored it"""
    advantage: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    """columns that rewards logged for this rollout"""
    dropped: bool = False
    """left out of training whole (too long for a row); its reward still counts in its group"""

    @property
    def length(self) -> int:
        """Sampled tokens."""
        return sum(len(turn.ids) for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """Cut off by a token limit, or empty. The generator's finish reason decides, not the last id."""
        return not self.turns or self.turns[-1].finish == LENGTH or self.length == 0


@dataclass
class Group:
    """Rollouts that are compared: same starting point, same agent."""

    key: tuple
    rollouts: list[Rollout]
    baseline: float = float("nan")
    """reward of the greedy rollout from the same start, for an algorithm that asks for it (Algorithm.greedy_baseline)"""

    @property
    def flat(self) -> bool:
        """Whether all scored rewards are equal (max == min), or fewer than two are scored: no signal for the baseline."""
        scored = [rollout.reward for rollout in self.rollouts if not np.isnan(rollout.reward)]
        return len(scored) < 2 or max(scored) == min(scored)


@dataclass
class GenerationBatch:
    """What a rollout source hands over: whole groups, the same on every rank, and what was measured while they were made."""

    groups: list[Group]
    step_hint: int = 0
    """index of the generation batch in this run, from 0"""
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """logged by rewards (log_metric): name -> (sum, count)"""
    seconds: dict[str, float] = field(default_factory=dict)
    """phase -> seconds (generation, reward)"""
    generated_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts, groups laid end to end."""
        return [rollout for group in self.groups for rollout in group.rollouts]
