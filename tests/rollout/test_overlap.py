"""reward.overlap: finished tasks are scored while others are sampled, and nothing but the time differs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from local_generators import generator_of
from models_for_tests import tiny_model
from programs import Programs
from rank_threads import on_ranks
from run_folders import final_weights, metrics, rollouts
from small_runs import Cli

from rlexp.chat.rendering import Renderer
from rlexp.config.errors import UserError
from rlexp.config.generation import SyncRolloutConfig
from rlexp.config.reward import RewardConfig
from rlexp.distributed.collectives import Collectives
from rlexp.generation.base import Done, LocalGenerator
from rlexp.models.loaded import LoadedModel
from rlexp.models.tokenizer import character_tokenizer
from rlexp.records.request import Request, Sampling
from rlexp.records.rollout import GenerationBatch
from rlexp.records.state import TrainerState
from rlexp.records.turn import EOS, LENGTH, Turn
from rlexp.rewards.runner import RewardRunner
from rlexp.rewards.terms import terms_of
from rlexp.rollout.player import Player
from rlexp.rollout.wave import play_together

WAIT = 20.0
"""seconds; a deadline, never reached"""
TOKENIZER = character_tokenizer()
TASKS = [(0, index, {"prompt": "item " + "x" * index, "k": index}) for index in range(5)]


def play(rewards: Sequence[Callable[..., Any]], generator: Any, *, collectives: Any = None, tasks: Any = TASKS, each: int = 4, **options: Any) -> Any:
    """One batch, and what playing it again gives when it fails the first time."""
    agents, sampling = options.pop("agents", None), options.pop("sampling", Sampling())
    player = Player(
        SyncRolloutConfig(max_completion_length=24),
        generator=generator,
        renderer=Renderer(TOKENIZER),
        rewards=RewardRunner(RewardConfig(**options), terms=terms_of(rewards)),
        seed=1,
        collectives=collectives or Collectives(),
        agents=agents,
    )
    try:
        return player.play(tasks, num_generations=each, sampling=sampling, purpose="train", state=TrainerState())
    finally:
        player.close()


def facts(batch: GenerationBatch) -> list[Any]:
    """All numbers of a batch but its seconds, bit for bit."""
    found: list[Any] = [sorted(batch.metrics.items()), batch.generated_tokens, batch.prompt_tokens]
    for rollout in batch.rollouts:
        (turn,) = rollout.turns
        kept = None if turn.candidates is None else (turn.candidates.ids.tobytes(), turn.candidates.offsets.tobytes())
        found.append((rollout.group, rollout.index, rollout.completion, turn.ids.tobytes(), turn.logprobs.tobytes(), turn.finish, turn.version, kept))
        found.append((rollout.task, rollout.rewards, rollout.reward, rollout.extra))
    return found


def ragged() -> LoadedModel:
    """Completions of 1 to 24 tokens."""
    return tiny_model(dtype=torch.float32, eos_ids=tuple(range(3, 11)))


def third(completions: list[str], k: list[int], log_metric: Any, log_extra: Any) -> list[float | None]:
    """Scores that float sums round, numbers logged for each rollout, and rollouts that get no score."""
    for completion in completions:
        log_metric("thirds", len(completion) / 3 + 0.1)
    log_extra("long", list(completions))
    return [None if number == 2 else len(completion) / 7 for completion, number in zip(completions, k, strict=True)]


async def slowly(completion_ids: list[list[int]], log_metric: Any) -> list[float]:
    await asyncio.sleep(0.001 * (sum(map(sum, completion_ids)) % 7))
    for ids in completion_ids:
        log_metric("tenths", len(ids) / 10)
        log_metric("thirds", len(ids) / 3)
    return [sum(ids) / 9 for ids in completion_ids]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    ("backend", "options"), [("native", {}), ("native", {"max_wave_tokens": 300}), ("transformers", {}), ("transformers", {"batch_size": 7})]
)
def test_the_batch_is_the_same_to_the_last_bit(backend: str, options: dict[str, int], world: int) -> None:
    models = [ragged() for _ in range(world)]  # here, because threads share the global seed

    def work(collectives: Any, overlap: bool) -> list[Any]:
        generator = generator_of(backend, models[collectives.rank], **options)
        return facts(play([third, slowly], generator, collectives=collectives, overlap=overlap, sampling=Sampling(top_k=60)))

    at_once = on_ranks(world, lambda collectives: work(collectives, False))
    overlapped = on_ranks(world, lambda collectives: work(collectives, True))
    assert overlapped == at_once and overlapped[0] == overlapped[-1]
    lengths = {len(turn[3]) for turn in at_once[0][3::2]}
    assert len(lengths) > 5, "ragged, or nothing could overlap"


def test_rewards_run_between_the_forwards_of_a_wave() -> None:
    loaded, called, seen = ragged(), threading.Event(), []
    lengths = [[rollout.length for rollout in group.rollouts] for group in play([third], generator_of("native", loaded)).groups]
    first, last = min(map(max, lengths)), max(map(max, lengths))
    assert first + 1 < last
    forwards = []

    def forward(*_: Any) -> None:
        forwards.append(torch.is_grad_enabled())
        if len(forwards) == first + 1:  # the prefill is one: some task has all its rollouts
            seen.append(called.wait(WAIT))

    def reward(completions: list[str], k: list[int]) -> list[float]:
        called.set()
        assert len(completions) == 4 and len(set(k)) == 1, "one task a call"
        return [0.0] * 4

    hook = loaded.module.register_forward_pre_hook(forward)
    loaded.module.train()
    play([reward], generator_of("native", loaded), overlap=True)
    hook.remove()
    assert seen == [True] and len(forwards) == last and not any(forwards)
    assert torch.is_grad_enabled() and loaded.module.training


class Drip(LocalGenerator):
    """Hands over turn after turn, task by task, and goes on once the last one was heard."""

    def __init__(self, heard: threading.Event) -> None:
        super().__init__()
        self.heard, self.handed, self.waves = heard, 0, 0

    def check(self, request: Request) -> None:
        """Everything is answered."""

    def turn(self, request: Request) -> Turn:
        ids = np.array([request.order[1]], np.int64)
        return Turn(np.asarray(request.ids, np.int64), ids, np.full(1, -0.5, np.float32), EOS)

    def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
        return [self.turn(request) for request in requests]

    def stream_wave(self, requests: Sequence[Request], done: Done) -> None:
        self.waves += 1
        for place, request in enumerate(requests):
            done(place, self.turn(request))
            self.handed += 1
            if request.order[2] == 1:  # the last of its task
                assert self.heard.wait(WAIT)
                threading.Event().wait(0.01)  # two seconds to its end


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("world", [1, 2])
def test_a_reward_that_raises_ends_the_wave(kind: str, world: int) -> None:
    generators = [Drip(threading.Event()) for _ in range(world)]

    def work(collectives: Any) -> GenerationBatch:
        heard = generators[collectives.rank].heard

        def fails(k: list[int]) -> list[float]:
            heard.set()
            if collectives.rank == world - 1:
                raise ValueError("my reward broke")
            return [0.0] * len(k)

        async def fails_later(k: list[int]) -> list[float]:
            return fails(k)

        return play([fails if kind == "sync" else fails_later], generators[collectives.rank], collectives=collectives, each=2, overlap=True, tasks=TASKS * 40)

    results = on_ranks(world, work)
    assert all(isinstance(result, UserError) and "my reward broke" in str(result) for result in results)
    assert generators[-1].handed < 400 // world, "the wave went on to its end"


def test_a_failing_call_is_its_tasks_own() -> None:
    def picky(completions: list[str], k: list[int], log_metric: Any) -> list[float]:
        log_metric("calls", 1.0)
        if k[0] in (1, 3):
            raise ValueError("odd")
        return [1.0] * len(k)

    batch = play([picky], generator_of("native", ragged()), overlap=True, on_error="value", error_value=-1.0)
    assert [group.rollouts[0].reward for group in batch.groups] == [1.0, -1.0, 1.0, -1.0, 1.0]
    assert batch.metrics == {"calls": (3.0, 3.0), "rewards/picky/errors": (2.0, 5.0)}


def test_a_late_call_is_counted_among_all() -> None:
    def sometimes(k: list[int]) -> list[float]:
        if k[0] == 4:
            threading.Event().wait(WAIT)
        return [1.0] * len(k)

    batch = play([sometimes], generator_of("native", ragged()), overlap=True, on_error="none", timeout=1.0)
    assert np.isnan(batch.groups[4].rollouts[0].reward) and batch.groups[3].rollouts[0].reward == 1.0
    assert batch.metrics == {"nondeterminism/reward_timeout": (1.0, 5.0), "rewards/sometimes/errors": (1.0, 5.0)}


def test_a_call_has_all_agents_of_a_task() -> None:
    models, calls = {"first": ragged(), "second": tiny_model(seed=1, dtype=torch.float32, spread=2.0)}, []

    def together(completions: list[str], k: list[int]) -> list[float]:
        calls.append((k[0], len(completions)))
        return [float(len(completion)) for completion in completions]

    made = [play([together], generator_of("native", models), agents={"a": "first", "b": "second"}, overlap=overlap) for overlap in (True, False)]
    assert facts(made[0]) == facts(made[1])
    assert sorted(calls[:5]) == [(index, 8) for index in range(5)] and calls[5:] == [(0, 40)]


def test_an_error_of_the_generator_is_raised() -> None:
    class Broken(Drip):
        def stream_wave(self, requests: Sequence[Request], done: Done) -> None:
            done(0, self.turn(requests[0]))
            raise MemoryError("no room for the cache")

    with pytest.raises(MemoryError, match="no room"):
        play([third], Broken(threading.Event()), overlap=True)


# several turns


class Early(LocalGenerator):
    """Hands turns over in a thread, each after its rollout was seen to go on; notes the waves."""

    def __init__(self) -> None:
        super().__init__()
        self.waves: list[list[tuple]] = []

    def check(self, request: Request) -> None:
        """Everything is answered."""

    def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
        raise AssertionError("waves run in the worker")

    def stream_wave(self, requests: Sequence[Request], done: Done) -> None:
        self.waves.append([request.order for request in requests])
        for place in np.random.default_rng(len(self.waves)).permutation(len(requests)).tolist():
            threading.Event().wait(0.002)
            done(place, Turn(requests[place].ids, np.array([requests[place].key]), np.zeros(1, np.float32), LENGTH))


def ask(number: int, turn: int, agent: int = 0) -> Request:
    return Request(np.array([1]), 1000 * number + 10 * turn + agent, 4, order=(number, turn, agent))


def test_waves_are_the_same_when_turns_come_early() -> None:
    generator = Early()

    async def talk(number: int, turns: int) -> list[int]:
        return [int((await generator.sample(ask(number, turn))).ids[0]) for turn in range(turns)]

    async def pair(number: int, turns: int) -> list[list[int]]:
        async def agent(which: int) -> list[int]:
            return [int((await generator.sample(ask(number, turn, which))).ids[0]) for turn in range(turns)]

        return list(await asyncio.gather(agent(0), agent(1)))

    with ThreadPoolExecutor(1) as worker:
        said = asyncio.run(asyncio.wait_for(play_together([talk(3, 2), pair(1, 3), talk(2, 0), talk(0, 1)], worker), WAIT))
    assert said == [[3000, 3010], [[1000, 1010, 1020], [1001, 1011, 1021]], [], [0]]
    assert generator.waves == [
        [(0, 0, 0), (1, 0, 0), (1, 0, 1), (3, 0, 0)],
        [(1, 1, 0), (1, 1, 1), (3, 1, 0)],
        [(1, 2, 0), (1, 2, 1)],
    ]


# a whole run


def test_a_run_learns_the_same(programs: Programs, tmp_path: Any) -> None:
    base = ["trainer.max_steps=4", "rollout.prompts_per_batch=3", "data.eval_size=3", "trainer.steps_per_batch=1"]
    runs = []
    for overlap in ("false", "true"):
        cli = Cli(programs, tmp_path / overlap)
        cli.folder.mkdir()
        done = cli.train(*base, f"reward.overlap={overlap}")
        assert done.code == 0, done.err
        runs.append(cli.run)
    assert final_weights(runs[0]) == final_weights(runs[1]) and metrics(runs[0]) == metrics(runs[1]) and rollouts(runs[0]) == rollouts(runs[1])
