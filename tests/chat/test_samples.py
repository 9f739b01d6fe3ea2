"""Turns to samples: appended or forked, every sampled token trained exactly once."""

from __future__ import annotations

import numpy as np
import pytest

from rlexp.chat.samples import samples_of
from rlexp.records.rollout import Rollout
from rlexp.records.sample import Sample
from rlexp.records.turn import EOS, Candidates, Turn


def turn(prompt: list[int], ids: list[int], trained: list[int] | None = None, candidates: list[list[int]] | None = None) -> Turn:
    """A turn whose token t has log-prob -id / 100."""
    lists = None
    if candidates is not None:
        lists = Candidates(np.array([i for kept in candidates for i in kept], np.int64), np.cumsum([0, *map(len, candidates)]))
    mask = None if trained is None else np.array(trained, bool)
    return Turn(np.array(prompt, np.int64), np.array(ids, np.int64), np.array(ids, np.float32) / -100, EOS, candidates=lists, trained=mask)


def samples(*turns: Turn) -> list[Sample]:
    return samples_of(Rollout({"prompt": "p"}, (0, 0, "policy"), 0, turns=list(turns)), 7, "policy")


def mask(sample: Sample) -> str:
    """One digit for each token: 1 where it is the target of a term."""
    digits = np.zeros(len(sample.ids), int)
    digits[sample.position_L + 1] += 1
    return "".join(map(str, digits))


@pytest.mark.rows("ASYNC-327", "ASYNC-332")
def test_a_turn_that_continues_the_held_tokens_is_appended():
    (made,) = samples(turn([1, 2, 3], [10, 11]), turn([1, 2, 3, 10, 11, 20, 21], [30, 31]))
    assert made.ids.tolist() == [1, 2, 3, 10, 11, 20, 21, 30, 31]
    assert mask(made) == "000110011"
    assert made.position_L.tolist() == [2, 3, 6, 7]
    assert made.target_L.tolist() == [10, 11, 30, 31]
    assert made.sampler_logp_L.dtype == np.float32
    np.testing.assert_allclose(made.sampler_logp_L, [-0.10, -0.11, -0.30, -0.31], atol=1e-7)
    assert (made.rollout, made.model, made.candidates) == (7, "policy", None)


@pytest.mark.rows("ASYNC-328", "ASYNC-331", "ASYNC-332")
def test_a_turn_that_renders_differently_starts_a_new_sample():
    first, second = samples(turn([1, 2, 3], [10, 11]), turn([1, 2, 3, 10, 12], [30, 31]))
    assert (first.ids.tolist(), mask(first)) == ([1, 2, 3, 10, 11], "00011")
    assert (second.ids.tolist(), mask(second)) == ([1, 2, 3, 10, 12, 30, 31], "0000011")
    assert first.rollout == second.rollout == 7


@pytest.mark.rows("ASYNC-328")
def test_a_shorter_prompt_forks_and_the_next_turn_continues_the_fork():
    first, second = samples(turn([1, 2, 3], [10, 11]), turn([1, 2], [30]), turn([1, 2, 30, 4], [5]))
    assert (mask(first), mask(second)) == ("00011", "00101")


@pytest.mark.rows("ASYNC-329")
def test_every_sampled_token_is_trained_in_exactly_one_sample():
    random = np.random.default_rng(0)
    for _ in range(50):
        turns, held = [], [int(i) for i in random.integers(1, 4, 2)]
        for _ in range(random.integers(1, 6)):
            ids = [int(i) for i in random.integers(100, 999, random.integers(0, 4))]
            turns.append(turn(held, ids))
            held = [*held, *ids, int(random.integers(1, 4))] if random.random() < 0.6 else [int(i) for i in random.integers(1, 4, 3)]
        made = samples(*turns)
        assert [int(i) for sample in made for i in sample.target_L] == [int(i) for one in turns for i in one.ids]
        for sample in made:
            assert sample.terms > 0
            assert np.array_equal(sample.ids[sample.position_L + 1], sample.target_L)
            assert (np.diff(sample.position_L) > 0).all()


@pytest.mark.rows("ASYNC-333")
def test_tokens_masked_out_by_the_turn_are_context_only():
    (made,) = samples(turn([1], [10, 11, 12], trained=[1, 0, 1]), turn([1, 10, 11, 12, 2], [13], trained=[1]))
    assert mask(made) == "010101"
    np.testing.assert_allclose(made.sampler_logp_L, [-0.10, -0.12, -0.13], atol=1e-7)
    assert samples(turn([1, 2], [10], trained=[0])) == []
    assert samples(turn([1, 2], [])) == []


@pytest.mark.rows("ASYNC-329")
def test_a_fork_without_trained_tokens_is_left_out_and_the_next_continues_from_it():
    (made,) = samples(turn([1], [10], trained=[0]), turn([1, 10, 2], [11]))
    assert (made.ids.tolist(), mask(made)) == ([1, 10, 2, 11], "0001")


def test_candidates_travel_with_the_terms_they_belong_to():
    (made,) = samples(
        turn([1], [10, 11, 12], trained=[1, 0, 1], candidates=[[10, 3], [11], [12, 4, 5]]),
        turn([1, 10, 11, 12, 2], [13], candidates=[[13, 6]]),
    )
    assert made.candidates is not None
    assert [made.candidates.of(term).tolist() for term in range(made.terms)] == [[10, 3], [12, 4, 5], [13, 6]]


def test_turns_that_disagree_about_candidates_are_refused():
    with pytest.raises(ValueError, match="some turns of a rollout come with candidate ids"):
        samples(turn([1], [10], candidates=[[10]]), turn([1, 10, 2], [11]))


def test_broken_turns_are_refused():
    with pytest.raises(ValueError, match="empty prompt"):
        samples(turn([], [10]))
    short = turn([1], [10, 11])
    short.logprobs = short.logprobs[:1]
    with pytest.raises(ValueError, match="2 tokens has 1 log-probs"):
        samples(short)
