"""Synthetic generation batches for tests of the loop: groups of rollouts with random ids, some with shared sampled tokens."""

from __future__ import annotations

import numpy as np

from rlexp.records.rollout import GenerationBatch, Group, Rollout
from rlexp.records.turn import EOS, LENGTH, Turn


def rollout(
    prompt: list[int], ids: list[int], reward: float, group: int = 0, index: int = 0, finish: str = EOS, policy: str = "policy", logp: float = -1.0
) -> Rollout:
    """One single-turn rollout with given ids and reward."""
    turn = Turn(np.array(prompt), np.array(ids, np.int64), np.full(len(ids), logp, np.float32), finish)
    made = Rollout({"prompt": "p"}, (0, group, policy), index, agent=policy, policy=policy, turns=[turn])
    made.rewards, made.reward = {"r": reward}, reward
    return made


def batch_of(groups: list[list[Rollout]]) -> GenerationBatch:
    """A generation batch of these groups."""
    return GenerationBatch([Group(items[0].group, items) for items in groups], generated_tokens=sum(item.length for items in groups for item in items))


def random_batch(seed: int, groups: int = 3, size: int = 4, vocabulary: int = 90) -> GenerationBatch:
    """Ragged completions behind shared prompts. In each group two rollouts start with the same sampled tokens and opposite rewards."""
    random = np.random.default_rng(seed)
    made = []
    for group in range(groups):
        prompt = [5, 6, 7, *random.integers(10, vocabulary, size=group + 1).tolist()]
        shared = random.integers(10, vocabulary, size=3).tolist()
        items = []
        for index in range(size):
            ids = random.integers(10, vocabulary, size=random.integers(1, 7)).tolist()
            ids = shared + ids if index < 2 else ids
            finish = LENGTH if random.random() < 0.2 else EOS
            items.append(rollout(prompt, ids, float(index % 2) if index < 2 else float(random.random()), group, index, finish))
        made.append(items)
    return batch_of(made)
