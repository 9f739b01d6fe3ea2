"""The synchronous source: batch after batch, and from the middle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from models_for_tests import tiny_model

from rlexp.chat.rendering import Renderer
from rlexp.config.generation import NativeGenerationConfig, SyncRolloutConfig
from rlexp.config.reward import RewardConfig
from rlexp.data.tasks import TaskOrder, task_data
from rlexp.distributed.collectives import Collectives
from rlexp.generation.native import NativeGenerator
from rlexp.records.request import Sampling
from rlexp.records.rollout import GenerationBatch
from rlexp.records.state import TrainerState
from rlexp.rewards.runner import RewardRunner
from rlexp.rewards.terms import terms_of
from rlexp.rollout.player import Player
from rlexp.rollout.sync import SyncSource


def progress(completions: list[str], trainer_state: TrainerState) -> list[float]:
    return [float(trainer_state.global_step)] * len(completions)


def source_of() -> SyncSource:
    loaded = tiny_model(dtype=torch.float32)
    config = SyncRolloutConfig(prompts_per_batch=2, max_completion_length=6)
    player = Player(
        config,
        generator=NativeGenerator(NativeGenerationConfig(), policies={"policy": loaded}),
        renderer=Renderer(loaded.tokenizer),
        rewards=RewardRunner(RewardConfig(), terms=terms_of([progress])),
        seed=3,
        collectives=Collectives(),
    )
    order = TaskOrder(task_data([{"prompt": f"task {i}"} for i in range(6)], []), seed=0, shuffle=True, prompts_per_batch=2)
    return SyncSource(config, order=order, player=player, sampling=Sampling(), num_generations=3)


def content(batch: GenerationBatch) -> list[Any]:
    return [(rollout.group, rollout.index, rollout.turns[0].ids.tobytes(), rollout.turns[0].logprobs.tobytes(), rollout.reward) for rollout in batch.rollouts]


def test_batches_follow_the_order_and_continue_from_a_checkpoint() -> None:
    source = source_of()
    batches = [source.next(TrainerState(global_step=step)) for step in range(5)]
    assert [batch.step_hint for batch in batches] == [0, 1, 2, 3, 4]
    assert sorted(group.key[1] for batch in batches[:3] for group in batch.groups) == [0, 1, 2, 3, 4, 5]  # the first epoch
    assert [group.key[0] for batch in batches for group in batch.groups] == [0] * 6 + [1] * 4
    assert [batch.rollouts[0].reward for batch in batches] == [0, 1, 2, 3, 4]
    assert source.epoch() == 5 / 3

    resumed = source_of()
    resumed.load_state_dict({"batch": 3})
    assert [content(resumed.next(TrainerState(global_step=step))) for step in (3, 4)] == [content(batch) for batch in batches[3:]]
    assert resumed.state_dict() == source.state_dict() == {"batch": 5}


def test_published_versions_are_stamped() -> None:
    source = source_of()
    versions = []
    for version in (0, 1, 5):
        source.publish(version)
        versions.append({rollout.turns[0].version for rollout in source.next(TrainerState()).rollouts})
    assert versions == [{0}, {1}, {5}]


def test_equal_runs_are_bitwise_equal_whatever_the_global_seeds() -> None:
    contents = []
    for seed in (0, 5):
        source, batches = source_of(), []
        for step in range(2):
            torch.manual_seed(seed + step), np.random.seed(seed + step)
            batches.append(content(source.next(TrainerState())))
        contents.append(batches)
    assert contents[0] == contents[1]
