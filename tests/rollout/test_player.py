"""Tasks to scored groups, in one process and on two ranks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from rank_threads import on_ranks

from rlexp.chat.rendering import Renderer
from rlexp.config.errors import UserError
from rlexp.config.generation import NativeGenerationConfig, SyncRolloutConfig
from rlexp.config.reward import RewardConfig
from rlexp.distributed.collectives import Collectives
from rlexp.generation.native import NativeGenerator
from rlexp.models.loaded import LoadedModel
from rlexp.models.tokenizer import character_tokenizer
from rlexp.records.request import Request, Sampling
from rlexp.records.rollout import GenerationBatch
from rlexp.records.state import TrainerState
from rlexp.records.turn import EOS, Turn
from rlexp.rewards.runner import RewardRunner
from rlexp.rewards.terms import terms_of
from rlexp.rollout.player import Player

TOKENIZER = character_tokenizer()
TASKS = [(0, index, {"prompt": f"item {index}", "k": index}) for index in range(32)]


class Echo:
    """A server-like generator: answers with what stands after "item ", each request after its own delay."""

    version = 0
    provides: frozenset[str] = frozenset()

    def set_version(self, version: int) -> None:
        self.version = version

    async def sample(self, request: Request) -> Turn:
        await asyncio.sleep(random.random() * 0.02)
        text = TOKENIZER.decode(request.ids).split("item ")[1]
        ids = np.array([*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id], np.int64)
        return Turn(request.ids, ids, np.full(len(ids), -0.5, np.float32), EOS, self.version)


def player_of(rewards: Sequence[Callable[..., Any]], collectives: Any = None, generator: Any = None, length: int = 8, **options: Any) -> Player:
    return Player(
        SyncRolloutConfig(max_completion_length=length),
        generator=generator or Echo(),
        renderer=Renderer(TOKENIZER),
        rewards=RewardRunner(RewardConfig(), terms=terms_of(rewards)),
        seed=1,
        collectives=collectives or Collectives(),
        **options,
    )


def play(player: Player, tasks: Sequence[Any], num_generations: int, sampling: Sampling | None = None, purpose: str = "train") -> GenerationBatch:
    try:
        return player.play(tasks, num_generations=num_generations, sampling=sampling or Sampling(), purpose=purpose, state=TrainerState())
    finally:
        player.close()


def native(loaded: LoadedModel) -> NativeGenerator:
    return NativeGenerator(NativeGenerationConfig(), policies={"policy": loaded})


def same(prompts: list[str], completions: list[str], k: list[int]) -> list[float]:
    time.sleep(random.random() * 0.02)
    return [float(prompt == f"item {number}" and completion == str(number)) for prompt, completion, number in zip(prompts, completions, k, strict=True)]


@pytest.mark.cases("S27")
@pytest.mark.parametrize("world", [1, 2, 3])
def test_completions_go_back_to_their_prompts(world: int) -> None:
    batches = on_ranks(world, lambda collectives: play(player_of([same], collectives), TASKS, 4))
    for batch in batches:
        assert [group.key for group in batch.groups] == [(0, index, "policy") for index in range(32)]
        assert [rollout.index for rollout in batch.rollouts] == [0, 1, 2, 3] * 32
        for rollout in batch.rollouts:
            assert rollout.task["prompt"] == f"item {rollout.task['k']}"
            assert rollout.completion == str(rollout.task["k"])
        assert np.mean([rollout.reward for rollout in batch.rollouts]) == 1.0
    texts = [[rollout.completion_text for rollout in batch.rollouts] for batch in batches]
    assert all(text == texts[0] for text in texts)


def test_ranks_play_contiguous_blocks_once() -> None:
    calls: dict[int, list[str]] = {0: [], 1: []}

    def work(collectives: Any) -> GenerationBatch:
        def note(prompts: list[str]) -> list[float]:
            calls[collectives.rank] += prompts
            return [0.0] * len(prompts)

        return play(player_of([note], collectives), TASKS[:3], 3)

    batches = on_ranks(2, work)
    assert calls == {0: ["item 0"] * 3 + ["item 1"], 1: ["item 1"] * 2 + ["item 2"] * 3}
    assert [len(group.rollouts) for group in batches[0].groups] == [3, 3, 3]
    assert all(a.task is b.task for a, b in zip(batches[0].rollouts[:2], batches[0].rollouts[1:3], strict=True))


@pytest.mark.cases("S52")
@pytest.mark.rows("GRPO-121", "GRPO-122", "GRPO-182")
def test_what_only_one_rank_logs_is_merged() -> None:
    def work(collectives: Any) -> GenerationBatch:
        def reward(prompts: list[str], log_extra: Any, log_metric: Any) -> list[float]:
            log_metric("both", float(collectives.rank))
            if collectives.rank == 0:
                log_metric("hit", 1.0)
                log_metric("hit", 0.0)
            else:
                log_extra("note", ["x", "y"])
            return [0.0] * len(prompts)

        return play(player_of([reward], collectives), TASKS[:2], 2)

    for batch in on_ranks(2, work):
        assert batch.metrics == {"both": (1.0, 2.0), "hit": (1.0, 2.0)}  # 0.5: a silent rank does not count as 0
        assert [rollout.extra for rollout in batch.rollouts] == [{"note": None}, {"note": None}, {"note": "x"}, {"note": "y"}]


@pytest.mark.parametrize("where", ["sample", "reward"])
def test_a_failing_rank_leaves_no_other_waiting(where: str) -> None:
    def work(collectives: Any) -> GenerationBatch:
        class Fails(Echo):
            async def sample(self, request: Request) -> Turn:
                if where == "sample" and collectives.rank == 1:
                    raise ConnectionError("the sampler of this rank is gone")
                return await super().sample(request)

        def reward(prompts: list[str]) -> list[float]:
            if where == "reward" and collectives.rank == 1:
                raise ValueError("my reward broke")
            return [0.0] * len(prompts)

        return play(player_of([reward], collectives, Fails()), TASKS[:2], 2)

    first, second = on_ranks(2, work)
    if where == "sample":
        assert isinstance(second, ConnectionError)
        assert isinstance(first, RuntimeError) and "rank 1 failed" in str(first) and "the sampler of this rank is gone" in str(first)
    else:
        assert isinstance(first, UserError) and isinstance(second, UserError)
        assert "my reward broke" in str(first)


@pytest.mark.cases("S46")
def test_a_prompt_without_room_is_named() -> None:
    tasks = [(2, 5, {"prompt": "ok"}), (2, 7, {"prompt": "x" * 40})]
    player = player_of([lambda prompts: [0.0] * len(prompts)], generator=native(tiny_model(context=32)))
    with pytest.raises(UserError, match=r"train task 7 of epoch 2: .*40 tokens.*context is 32.*data.overlong_prompt"):
        play(player, tasks, 2)


@pytest.mark.cases("S24")
def test_each_play_has_its_own_random_key() -> None:
    loaded = tiny_model(dtype=torch.float32, eos_ids=())

    def ids(purpose: str = "train", epoch: int = 0, seed: int = 1) -> list[tuple[int, ...]]:
        player = player_of([lambda prompts: [0.0] * len(prompts)], generator=native(loaded), length=12)
        player.seed = seed
        tasks = [(epoch, index, {"prompt": "same"}) for index in (0, 1)]
        return [tuple(rollout.turns[0].ids) for rollout in play(player, tasks, 3, purpose=purpose).rollouts]

    assert ids() == ids()
    assert len({*ids(), *ids("eval"), *ids(epoch=1), *ids(seed=2)}) == 4 * 6


@pytest.mark.cases("S27")
def test_slow_rewards_and_split_ranks_sample_the_same_ids() -> None:
    models = [tiny_model(dtype=torch.float32, spread=2.0) for _ in range(3)]  # here, because threads share the global seed

    def work(collectives: Any) -> list[list[int]]:
        def slow(prompts: list[str]) -> list[float]:
            time.sleep(random.random() * 0.05)
            return [0.0] * len(prompts)

        batch = play(player_of([slow], collectives, native(models[collectives.rank])), TASKS[:3], 4)
        return [rollout.turns[0].ids.tolist() for rollout in batch.rollouts]

    alone = play(player_of([lambda prompts: [0.0] * len(prompts)], generator=native(models[2])), TASKS[:3], 4)
    expected = [rollout.turns[0].ids.tolist() for rollout in alone.rollouts]
    assert on_ranks(2, work) == [expected, expected]


def test_tokens_and_seconds_are_counted() -> None:
    async def slow(prompts: list[str]) -> list[float]:
        await asyncio.sleep(0.05)
        return [1.0] * len(prompts)

    batch = play(player_of([slow]), TASKS[9:11], 2)
    assert batch.prompt_tokens == 2 * len("item 9") + 2 * len("item 10")
    assert batch.generated_tokens == 2 * 2 + 2 * 3  # the digits and the EOS
    assert set(batch.seconds) == {"generation", "reward"} and batch.seconds["reward"] >= 0.05


def test_prompts_are_cut_on_the_left() -> None:
    player = player_of([lambda prompts: [0.0] * len(prompts)], generator=native(tiny_model()), prompt_limit=4)
    rollout = play(player, [(0, 0, {"prompt": "abcdefgh"})], 1).rollouts[0]
    assert TOKENIZER.decode(rollout.turns[0].prompt_ids) == "efgh"
    assert (rollout.prompt_text, rollout.prompt) == ("efgh", "abcdefgh")


@pytest.mark.parametrize(("turn", "expected"), [(None, 12), (5, 5)])
def test_lengths_bound_the_request(turn: int | None, expected: int) -> None:
    player = player_of([lambda prompts: [0.0] * len(prompts)], generator=native(tiny_model(eos_ids=())), length=12)
    player.config.max_turn_length = turn
    rollout = play(player, TASKS[:1], 1).rollouts[0]
    assert rollout.length == expected and rollout.truncated


def test_several_agents_answer_the_same_prompt() -> None:
    models = {"first": tiny_model(seed=0), "second": tiny_model(seed=1)}
    generator = NativeGenerator(NativeGenerationConfig(), policies=models)
    batch = play(player_of([lambda prompts: [0.0] * len(prompts)], generator=generator, agents={"a": "first", "b": "second"}), TASKS[:2], 2)
    assert [group.key for group in batch.groups] == [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (0, 1, "b")]
    assert [(rollout.agent, rollout.policy, rollout.joint) for rollout in batch.groups[3].rollouts] == [("b", "second", (0, 1, 0)), ("b", "second", (0, 1, 1))]
