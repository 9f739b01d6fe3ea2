"""generation=vllm on a real engine: what it samples, what it says about it, when it stops."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_runs import NAME, Setup
from local_generators import requests_of, teacher_forced
from models_for_tests import four_tokens

from rlexp.config.vllm import VLLMGenerationConfig
from rlexp.generation.base import BadPrompt
from rlexp.generation.vllm import sampling as vllm_sampling
from rlexp.generation.vllm.generator import VLLMGenerator
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import EOS, LENGTH, STOP, Turn

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21, 22], [5, 6, 7, 8, 9, 10, 11], [30, 31, 32, 33, 34]]
Make = Callable[..., Setup]


@pytest.fixture
def ready(engine: Make) -> Setup:
    """An untied model whose weights the engine has."""
    setup = engine()
    setup.push(1)
    return setup


def sampled(turns: list[Turn]) -> list[list[int]]:
    return [turn.ids.tolist() for turn in turns]


@pytest.mark.rows("GRPO-189", "GRPO-190", "GRPO-196")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, 0.9, 20), Sampling(1.3, top_k=5, min_p=0.1)], ids=str)
def test_logprobs_are_those_of_a_plain_forward(engine: Make, sampling: Sampling) -> None:
    setup = engine(eos_ids=tuple(range(12)))
    setup.push(3)
    turns = setup.generator.sample_wave(requests_of(PROMPTS, 24, sampling, each=3))
    assert len({len(turn.ids) for turn in turns}) > 2
    for turn, prompt in zip(turns, [prompt for prompt in PROMPTS for _ in range(3)], strict=True):
        assert turn.prompt_ids.tolist() == prompt and turn.version == 3 and turn.logprobs.dtype == np.float32
        assert (turn.candidates is not None) == sampling.truncated
        np.testing.assert_allclose(turn.logprobs, teacher_forced(setup.loaded.module, turn, sampling), atol=1e-5)


@pytest.mark.rows("GRPO-265", "ASYNC-226")
def test_candidates_are_the_tokens_left_to_choose_from(ready: Setup) -> None:
    turn = ready.generator.sample_wave(requests_of(PROMPTS[:1], 8, Sampling(top_k=6, top_p=0.8)))[0]
    assert turn.candidates is not None
    text = torch.from_numpy(np.concatenate([turn.prompt_ids, turn.ids]))[None]
    probabilities = ready.loaded.module(text).logits[0, len(turn.prompt_ids) - 1 : -1].softmax(-1)
    for place, token in enumerate(turn.ids):
        values, ids = probabilities[place].topk(6)
        values = values / values.sum()
        wanted = set(ids[values.cumsum(0) - values < 0.8].tolist())
        assert set(turn.candidates.of(place).tolist()) == wanted and int(token) in wanted


@pytest.mark.cases("S24")
def test_keys_decide_what_is_sampled(ready: Setup) -> None:
    one, again, other = (sampled(ready.generator.sample_wave(requests_of(PROMPTS[:2], 10, each=3, seed=seed))) for seed in (1, 1, 2))
    assert one == again and all(a != b for a, b in zip(one, other, strict=True))
    assert len({tuple(ids) for ids in one}) == len(one)


def test_many_long_prompts_at_once(ready: Setup) -> None:
    """More tokens than one step of the engine takes. vLLM 0.32 dies on a CPU when it reads a part of a prompt whose request has a seed."""
    draws = np.random.default_rng(0)
    turns = ready.generator.sample_wave(requests_of([draws.integers(0, 90, 250).tolist() for _ in range(40)], 3, each=2))
    assert len(turns) == 80
    np.testing.assert_allclose(turns[-1].logprobs, teacher_forced(ready.loaded.module, turns[-1], Sampling()), atol=1e-5)


@pytest.mark.rows("GRPO-207")
def test_a_prompt_goes_once_for_its_group(ready: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = ready.generator.engines[NAME].run
    monkeypatch.setattr(ready.generator.engines[NAME], "run", lambda requests, lora=None: asked.extend(requests) or run(requests, lora))
    ready.generator.sample_wave(requests_of([PROMPTS[0], PROMPTS[1]], 6, each=4))
    assert sorted((ids, parameters.n) for ids, parameters in asked) == [(PROMPTS[0], 4), (PROMPTS[1], 4)]


def test_turns_are_handed_over_as_they_end(ready: Setup) -> None:
    order: list[int] = []
    requests = [Request(np.array([i + 3, 4, 5]), 7 + i, length, Sampling(), order=(i,)) for i, length in enumerate([30, 2, 10])]
    ready.generator.stream_wave(requests, lambda place, turn: order.append(place))
    assert sorted(order) == [0, 1, 2] and order[-1] == 0 and order[0] == 1


def test_a_listener_that_leaves_ends_the_wave(ready: Setup) -> None:
    def leave(place: int, turn: Turn) -> None:
        raise KeyError("nobody listens")

    with pytest.raises(KeyError):
        ready.generator.stream_wave([Request(np.array([3, 4]), 1, 2), Request(np.array([5, 6]), 2, 40)], leave)
    assert not ready.generator.engines[NAME].engine.has_unfinished_requests()


@pytest.mark.rows("GRPO-046")
def test_ends(engine: Make) -> None:
    """EOS beats stop and stop beats length; whatever ended a completion is its last token."""
    free = engine(eos_ids=())
    free.push(0)
    long = free.generator.sample_wave(requests_of(PROMPTS[:1], 20))[0]
    assert long.finish == LENGTH and len(long.ids) == 20
    fourth = int(long.ids[3])
    first = long.ids.tolist().index(fourth)
    for eos_ids, stop_ids, finish in (((fourth, 1), (), EOS), ((), (fourth,), STOP), ((fourth,), (fourth,), EOS)):
        setup = engine(eos_ids=eos_ids)
        turn = setup.generator.sample_wave(requests_of(PROMPTS[:1], 20, Sampling(stop_ids=stop_ids)))[0]
        assert turn.finish == finish and turn.ids.tolist() == long.ids[: first + 1].tolist() and len(turn.logprobs) == first + 1
    assert setup.generator.sample_wave(requests_of(PROMPTS[:1], first + 1))[0].finish == EOS  # at the limit too


@pytest.mark.rows("GRPO-081")
def test_stop_strings(engine: Make) -> None:
    free = engine(eos_ids=())
    free.push(0)
    long = free.generator.sample_wave(requests_of(PROMPTS[:1], 24))[0]
    tokenizer = free.loaded.tokenizer
    place = next(i for i in range(2, 20) if len(tokenizer.decode(long.ids[i : i + 2])) == 2)
    string = tokenizer.decode(long.ids[place : place + 2])
    end = tokenizer.decode(long.ids).index(string)
    turn = free.generator.sample_wave(requests_of(PROMPTS[:1], 24, Sampling(stop=(string,))))[0]
    assert turn.finish == STOP and tokenizer.decode(turn.ids) == tokenizer.decode(long.ids)[: end + 2]
    assert len(turn.ids) == len(turn.logprobs)


def test_greedy_gives_logprobs_at_temperature_one(ready: Setup) -> None:
    turn = ready.generator.sample_wave(requests_of(PROMPTS[:1], 6, Sampling().greedy))[0]
    text = torch.from_numpy(np.concatenate([turn.prompt_ids, turn.ids]))[None]
    logits = ready.loaded.module(text).logits[0, len(turn.prompt_ids) - 1 : -1]
    assert turn.ids.tolist() == logits.argmax(-1).tolist()
    np.testing.assert_allclose(turn.logprobs, logits.log_softmax(-1).max(-1).values.detach().numpy(), atol=1e-5)


@pytest.mark.rows("GRPO-192")
def test_completions_match_the_regular_expression(engine: Make) -> None:
    setup = engine(structured_outputs_regex="[0-9]{2,3}")
    setup.push(0)
    turns = setup.generator.sample_wave(requests_of(PROMPTS[:2], 8, each=4))
    texts = [setup.loaded.tokenizer.decode(turn.ids, skip_special_tokens=True) for turn in turns]
    assert all(re.fullmatch("[0-9]{2,3}", text) for text in texts) and len(set(texts)) > 1
    assert all(turn.finish == EOS for turn in turns)


@pytest.mark.rows("GRPO-082")
def test_further_arguments_reach_the_engine(ready: Setup) -> None:
    eos = ready.loaded.eos_ids[0]
    banned = int(ready.generator.sample_wave(requests_of(PROMPTS[:1], 1, Sampling().greedy))[0].ids[0])
    turn = ready.generator.sample_wave(requests_of(PROMPTS[:1], 1, Sampling(temperature=0.0, extra=(("logit_bias", {banned: -100.0}),))))[0]
    assert turn.ids[0] != banned and eos is not None
    from vllm import SamplingParams

    with pytest.raises(Exception, match=r"generation_kwargs\.min_token is no argument of vLLM's SamplingParams; did you mean min_tokens\?") as error:
        vllm_sampling.check_arguments(["min_token", "seed"], SamplingParams.__struct_fields__)
    assert "generation_kwargs.seed cannot be used: every request has its own" in str(error.value)


@pytest.mark.cases("S26")
@pytest.mark.rows("GRPO-077")
def test_sampling_settings_of_the_model_folder_do_not_count(engine: Make) -> None:
    """temperature 0.1, top_k 1 and a repetition penalty stand in its generation config; rlexp asked for the plain distribution."""
    setup = engine(eos_ids=(0, 5))
    with torch.no_grad():
        setup.loaded.module.lm_head.weight.zero_()
    setup.push(0)
    turns = setup.generator.sample_wave(requests_of(PROMPTS[1:2], 1, each=400))
    vocabulary = setup.loaded.module.config.vocab_size
    assert len({int(turn.ids[0]) for turn in turns}) > 0.9 * vocabulary  # expected: 98 %
    np.testing.assert_allclose([turn.logprobs[0] for turn in turns], -np.log(vocabulary), atol=1e-5)
    assert {turn.finish for turn in turns if turn.ids[0] in (0, 5)} <= {EOS}


@pytest.mark.cases("S12")
@pytest.mark.rows("GRPO-060", "ASYNC-232")
def test_nucleus_sampling_has_no_biased_ratio(engine: Make) -> None:
    """top_p is a little below .8, where vLLM leaves the tie to rounding."""
    setup = engine(eos_ids=())
    four_tokens(setup.loaded)
    setup.push(0)
    sampling = Sampling(top_p=0.799, top_k=4)
    turns = setup.generator.sample_wave(requests_of(PROMPTS[:1], 6, sampling, each=4))
    expected = {0: -0.470004, 1: -0.980829}
    assert {int(token) for turn in turns for token in turn.ids} == {0, 1}
    for turn in turns:
        assert all(turn.candidates.of(place).tolist() == [0, 1] for place in range(6))
        np.testing.assert_allclose(turn.logprobs, [expected[int(token)] for token in turn.ids], atol=2e-5)
        np.testing.assert_allclose(turn.logprobs, teacher_forced(setup.loaded.module, turn, Sampling()), atol=2e-5)  # the trainer over the same candidates


@pytest.mark.cases("S21")
def test_the_engine_adds_no_token_to_a_prompt(ready: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    engine = ready.generator.engines[NAME]
    run = engine.run

    def watched(requests, lora=None):
        for place, output in run(requests, lora):
            seen.append((requests[place][0], list(output.prompt_token_ids)))
            yield place, output

    monkeypatch.setattr(engine, "run", watched)
    turns = ready.generator.sample_wave(requests_of([[1, 9, 9], [1, 7]], 2))
    assert [turn.prompt_ids.tolist() for turn in turns] == [[1, 9, 9], [1, 7]]
    assert len(seen) == 2 and all(sent == read for sent, read in seen)


@pytest.mark.cases("S46")
@pytest.mark.rows("GRPO-194")
def test_a_prompt_longer_than_the_context(ready: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready.generator, "context", 32)
    for length in (40, 32):
        with pytest.raises(BadPrompt, match=rf"the prompt has {length} tokens and generation.max_model_length=32, which leaves none to sample"):
            ready.generator.check(Request(np.full(length, 9), 1, 8))
    turn = ready.generator.sample_wave([Request(np.full(30, 9), 1, 8)])[0]
    assert len(turn.ids) == 2 and turn.finish == LENGTH
    with pytest.raises(BadPrompt, match="no tokens"):
        ready.generator.check(Request(np.zeros(0, np.int64), 1, 8))


def test_two_policies_have_an_engine_each(engine: Make) -> None:
    """Requests of both in one wave, with weights of their own after every sync."""
    setups = {"first": engine(), "second": engine(tied=True)}
    policies = {name: setup.loaded for name, setup in setups.items()}
    running = {name: setup.generator.engines[NAME] for name, setup in setups.items()}
    config = VLLMGenerationConfig(verify_sync="always")
    generator = VLLMGenerator(config, policies=policies, trainer=TrainerSide(torch.float32), engines=running)
    sync = WeightSync(config, generator, policies)
    for version, changed in enumerate(("first", "second")):
        setups[changed].train()
        sync.announce(version)
        sync.bring()
        assert generator.weights.version() == version
        wave = [dataclasses.replace(request, policy=name) for name in policies for request in requests_of(PROMPTS[:2], 6, each=2)]
        turns = generator.sample_wave(wave)
        for request, turn in zip(wave, turns, strict=True):
            np.testing.assert_allclose(turn.logprobs, teacher_forced(policies[request.policy].module, turn, Sampling()), atol=1e-5)
        assert sampled(turns[:4]) != sampled(turns[4:])


@pytest.mark.rows("GRPO-191")
def test_scores(ready: Setup) -> None:
    texts = [np.array([5, 9, 3, 77, 20]), np.array([8, 8])]
    for text, score in zip(texts, ready.generator.score(NAME, texts, top_k=3), strict=True):
        logprobs = ready.loaded.module(torch.from_numpy(text)[None]).logits[0, :-1].log_softmax(-1).detach()
        np.testing.assert_allclose(score.logprobs, logprobs.gather(-1, torch.from_numpy(text[1:])[:, None])[:, 0], atol=1e-5)
        values, ids = logprobs.topk(3)
        assert score.top_ids is not None and score.top_ids.tolist() == ids.tolist()
        np.testing.assert_allclose(score.top_logprobs, values, atol=1e-5)
    assert ready.generator.score(NAME, texts[:1])[0].top_ids is None
    with pytest.raises(BadPrompt, match="cannot be scored: it must have 2 to 319"):
        ready.generator.score(NAME, [np.zeros(320, np.int64)])
