"""Rollouts that sample in waves: what is sampled together does not depend on timing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from rlexp.generation.base import LocalGenerator
from rlexp.records.request import Request
from rlexp.records.turn import EOS, Turn
from rlexp.rollout.wave import play_together


class Recorder(LocalGenerator):
    """Answers with the request's key, and notes the waves."""

    def __init__(self) -> None:
        super().__init__()
        self.waves: list[list[tuple]] = []

    def check(self, request: Request) -> None:
        return

    def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
        self.waves.append([request.order for request in requests])
        return [Turn(request.ids, np.array([request.key]), np.zeros(1, np.float32), EOS) for request in requests]


def ask(number: int, turn: int) -> Request:
    return Request(np.array([1]), 100 * number + turn, 4, order=(number, turn))


async def no_pause() -> None:
    return


async def random_pause() -> None:
    await asyncio.sleep(random.random() * 0.01)


async def talk(generator: Recorder, number: int, turns: int, pause: Callable[[], Awaitable[None]]) -> list[int]:
    said = []
    for turn in range(turns):
        await pause()
        said.append(int((await generator.sample(ask(number, turn))).ids[0]))
    return said


@pytest.mark.parametrize("pause", [no_pause, random_pause])
def test_waves_do_not_depend_on_timing(pause: Callable[[], Awaitable[None]]) -> None:
    generator = Recorder()
    loops = [talk(generator, number, turns, pause) for number, turns in ((3, 2), (1, 3), (2, 0), (0, 1))]
    said = asyncio.run(play_together(loops))
    assert said == [[300, 301], [100, 101, 102], [], [0]]
    assert generator.waves == [[(0, 0), (1, 0), (3, 0)], [(1, 1), (3, 1)], [(1, 2)]]


@pytest.mark.parametrize("pause", [no_pause, random_pause])
def test_turns_gathered_by_one_rollout_join_one_wave(pause: Callable[[], Awaitable[None]]) -> None:
    generator = Recorder()

    async def both() -> int:
        return len(await asyncio.gather(generator.sample(ask(5, 0)), generator.sample(ask(5, 1))))

    assert asyncio.run(play_together([talk(generator, 1, 1, pause), both()])) == [[100], 2]
    assert generator.waves == [[(1, 0), (5, 0), (5, 1)]]


def test_two_generators_in_one_wave_get_their_own_requests() -> None:
    one, two = Recorder(), Recorder()
    said = asyncio.run(play_together([talk(one, 2, 1, no_pause), talk(two, 1, 1, no_pause), talk(one, 0, 1, no_pause)]))
    assert said == [[200], [100], [0]]
    assert (one.waves, two.waves) == ([[(0, 0), (2, 0)]], [[(1, 0)]])


def test_an_exception_in_one_rollout_ends_the_others_cleanly() -> None:
    generator, ended = Recorder(), []

    async def fails() -> None:
        await generator.sample(ask(0, 0))
        raise ValueError("a tool broke")

    async def sleeps() -> None:
        try:
            await generator.sample(ask(1, 0))
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    with pytest.raises(ValueError, match="a tool broke"):
        asyncio.run(asyncio.wait_for(play_together([sleeps(), fails()]), 5))
    assert ended == ["cleaned up"]


def test_an_exception_of_the_generator_reaches_the_caller() -> None:
    class Broken(Recorder):
        def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
            raise MemoryError("no room for the cache")

    generator = Broken()
    with pytest.raises(MemoryError, match="no room"):
        asyncio.run(asyncio.wait_for(play_together([talk(generator, number, 1, no_pause) for number in range(3)]), 5))


def test_a_rollout_that_catches_the_generators_error_goes_on() -> None:
    class Moody(Recorder):
        def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
            if not self.waves:
                self.waves.append([])
                raise RuntimeError("once")
            return super().sample_wave(requests)

    generator = Moody()

    async def stubborn(number: int) -> list[int]:
        try:
            return await talk(generator, number, 1, no_pause)
        except RuntimeError:
            return await talk(generator, number, 1, no_pause)

    assert asyncio.run(play_together([stubborn(1), stubborn(2)])) == [[100], [200]]


def test_no_rollouts() -> None:
    assert asyncio.run(play_together([])) == []
