"""Advantages read literally from the papers: one rollout at a time, plain Python numbers, nothing of the package."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rollout:
    """group: its key. reward: None where nothing scored it. greedy: reward of the task's greedy rollout. gaps: old - reference of each token."""

    group: int
    reward: float | None
    length: int
    greedy: float | None = None
    gaps: list[float] = field(default_factory=list)


def clipped(number: float | None, own: dict[str, Any]) -> float | None:
    """Within reward_clip_range."""
    bounds = own["reward_clip_range"]
    return number if number is None or bounds is None else min(max(number, bounds[0]), bounds[1])


def divergence(gap: float, estimator: str) -> float:
    """The KL of one token from log pi_old - log pi_ref."""
    return {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) + gap - 1, "abs": abs(gap)}[estimator]


def advantages(name: str, rollouts: list[Rollout], own: dict[str, Any]) -> list[list[float]]:
    """Of each token of each rollout. own: the algorithm's options."""
    rewards = [clipped(rollout.reward, own) for rollout in rollouts]
    costs = [[own["beta"] * divergence(gap, own["kl_estimator"]) for gap in rollout.gaps] for rollout in rollouts]
    in_reward = own["beta"] > 0 and own["kl_in"] == "reward"
    if name == "reinforce_pp":
        tokens = by_token(rollouts, rewards, costs if in_reward else None, own)
    else:
        if in_reward:
            rewards = [None if reward is None else reward - sum(cost) for reward, cost in zip(rewards, costs, strict=True)]
        tokens = [[value] * rollout.length for value, rollout in zip(by_rollout(name, rollouts, rewards, own), rollouts, strict=True)]
    limit = math.inf if own["advantage_clip"] is None else own["advantage_clip"]
    return [[0.0 if value is None else min(max(value, -limit), limit) for value in mine] for mine in tokens]


def by_rollout(name: str, rollouts: list[Rollout], rewards: list[float | None], own: dict[str, Any]) -> list[float | None]:
    """One number for each rollout, None without."""
    known = [reward for reward in rewards if reward is not None]
    values: list[float | None] = []
    for i, reward in enumerate(rewards):
        peers = [j for j, other in enumerate(rollouts) if other.group == rollouts[i].group and rewards[j] is not None]
        values.append(None if reward is None else one(name, i, peers, rollouts, rewards, known, own))
    if name == "rloo" and own["normalize_advantages"]:
        there = [value for value in values if value is not None]
        mean, std = statistics.fmean(there), statistics.stdev(there)
        values = [None if value is None else (value - mean) / (std + 1e-4) for value in values]
    return values


def one(name: str, i: int, peers: list[int], rollouts: list[Rollout], rewards: list[Any], known: list[float], own: dict[str, Any]) -> float | None:
    """The advantage of a rollout that was scored; peers: the scored rollouts of its group, itself too."""
    reward, group = rewards[i], [rewards[j] for j in peers]
    mean = sum(group) / len(group)
    if name == "grpo":
        if len(group) < 2 or max(group) == min(group):
            return 0.0
        std = {"group": statistics.stdev(group), "batch": statistics.stdev(known), "none": 0.0}[own["scale_rewards"]]
        return (reward - mean) if own["scale_rewards"] == "none" else (reward - mean) / (std + 1e-4)
    if name == "rloo":
        return None if len(group) < 2 else reward - (sum(group) - reward) / (len(group) - 1)
    if name == "reinforce":
        return reward - (sum(known) / len(known) if own["baseline"] == "batch" else 0.0)
    if name == "remax":
        greedy = clipped(rollouts[i].greedy, own)
        return None if greedy is None else reward - greedy
    if name == "opo":
        return reward - sum(rollouts[j].length * rewards[j] for j in peers) / sum(rollouts[j].length for j in peers)
    if name == "maxrl":
        return 0.0 if mean == 0 else (reward - mean) / mean
    assert name == "grpo_passk"
    sets = list(itertools.combinations(peers, own["k"]))
    worth = {chosen: float(any(rewards[j] >= own["correct_reward"] for j in chosen)) for chosen in sets}
    std = statistics.pstdev(worth.values()) if sets else 0.0
    mine = [chosen for chosen in sets if i in chosen]
    return statistics.fmean((worth[chosen] - statistics.fmean(worth.values())) / std for chosen in mine) if std else 0.0


def by_token(rollouts: list[Rollout], rewards: list[float | None], costs: list[list[float]] | None, own: dict[str, Any]) -> list[list[float | None]]:
    """REINFORCE++: the reward less the KL from a token to the end, brought to mean 0 and std 1 over all tokens."""
    raw: list[list[float | None]] = []
    for i, rollout in enumerate(rollouts):
        reward = rewards[i]
        if reward is not None and own["baseline"] == "group":
            reward -= statistics.fmean(r for r, other in zip(rewards, rollouts, strict=True) if r is not None and other.group == rollout.group)
        raw.append([None if reward is None else reward - (sum(costs[i][t:]) if costs else 0.0) for t in range(rollout.length)])
    known = [value for mine in raw for value in mine if value is not None]
    mean, std = statistics.fmean(known), statistics.stdev(known)
    return [[None if value is None else (value - mean) / (std + 1e-8) for value in mine] for mine in raw]
