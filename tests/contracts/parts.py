"""What the contract algorithms train with: a random model, a reward, an agent loop for two, and a source that delivers late."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from models_for_tests import tiny_model

from rlexp.models.loaded import LoadedModel
from rlexp.records.rollout import GenerationBatch, Rollout
from rlexp.records.state import TrainerState
from rlexp.rollout.start import Start
from rlexp.rollout.sync import SyncSource


def load_model(config: Any, *, seed: int) -> LoadedModel:
    """A random model; float64 or float32 as model.dtype says."""
    return tiny_model(hidden=config.hidden_size, layers=1, dtype=getattr(torch, config.dtype), context=config.context, seed=seed, spread=3.0)


class Digits:
    """The share of digits among the characters plus a hundredth of the length."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, completions: list[Any], completion_ids: list[list[int]]) -> list[float]:
        """One number per completion."""
        if self.config.sleep:
            time.sleep(random.Random().uniform(0, self.config.sleep))
        if self.config.reseed:
            random.seed(time.time_ns())
            np.random.seed(time.time_ns() % 2**32)
            torch.manual_seed(time.time_ns() % 2**63)
        texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
        return [sum(character.isdigit() for character in text) / max(len(text), 1) + 0.01 * len(ids) for text, ids in zip(texts, completion_ids, strict=True)]


async def two_agents(start: Start, generator: Any, renderer: Any) -> list[Rollout]:
    """The first agent answers the task; the second answers after reading that answer. Both share a joint key."""
    made: list[Rollout] = []
    heard = ""
    for turn_number, (agent, policy) in enumerate(start.agents.items()):
        rendered = renderer.render([{"role": "user", "content": start.task["prompt"][-1]["content"] + heard}])
        turn = await generator.sample(start.request(rendered.ids, policy=policy, turn=turn_number))
        heard = renderer.decode(turn.ids)
        made.append(
            Rollout(
                task=start.task,
                group=start.group(agent),
                index=start.number,
                agent=agent,
                policy=policy,
                joint=start.joint,
                turns=[turn],
                prompt=rendered.prompt,
                completion=[{"role": "assistant", "content": heard}],
                prompt_text=rendered.text,
                completion_text=heard,
                completion_text_special=heard,
            )
        )
    return made


class LateSource(SyncSource):
    """Hands over the batch made one call earlier, so that it was sampled by older weights; what waits is part of its state."""

    waiting: GenerationBatch | None = None

    def next(self, state: TrainerState) -> GenerationBatch:
        """The batch that waited, after the next one was made."""
        if self.waiting is None:
            self.waiting = super().next(state)
        ready, self.waiting = self.waiting, super().next(state)
        return ready

    def state_dict(self) -> dict[str, Any]:
        """The batch number and the batch that waits."""
        return {**super().state_dict(), "waiting": self.waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with both."""
        super().load_state_dict(state)
        self.waiting = state["waiting"]
