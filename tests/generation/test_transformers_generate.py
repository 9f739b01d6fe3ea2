"""What only generate() can, and what it must not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from local_generators import generator_of, requests_of, teacher_forced
from models_for_tests import tiny_model
from table_model import table_model

from rlexp.config.errors import UserError
from rlexp.config.generation import TransformersGenerationConfig
from rlexp.generation.base import sampling_from
from rlexp.generation.transformers_generate import TransformersGenerator
from rlexp.records.request import Sampling


@pytest.mark.rows("GRPO-082")
@pytest.mark.parametrize("as_text", [False, True])
def test_arguments_only_transformers_knows_shape_the_distribution(as_text: bool) -> None:
    arguments = {"suppress_tokens": [0, 2], "min_new_tokens": 2, "temperature": 0.5}
    config = TransformersGenerationConfig(generation_kwargs=json.dumps(arguments) if as_text else arguments, temperature=2.0)
    loaded = table_model([0.5, 0.3, 0.15, 0.05], eos_ids=(1,))
    turns = TransformersGenerator(config, policies={"policy": loaded}).sample_wave(requests_of([[3]], 2, sampling_from(config), each=50))
    firsts, seconds = {int(turn.ids[0]) for turn in turns}, {int(turn.ids[1]) for turn in turns}
    assert firsts == {3} and seconds == {3}  # 0 and 2 are suppressed, 1 is an EOS id that min_new_tokens=2 forbids twice
    config.generation_kwargs = {"suppress_tokens": [0, 2], "temperature": 0.5}
    turns = TransformersGenerator(config, policies={"policy": loaded}).sample_wave(requests_of([[3]], 1, sampling_from(config), each=200))
    assert {int(turn.ids[0]) for turn in turns} == {1, 3}
    expected = {1: np.log(0.3**2 / (0.3**2 + 0.05**2)), 3: np.log(0.05**2 / (0.3**2 + 0.05**2))}
    for turn in turns:
        assert turn.logprobs[0] == pytest.approx(expected[int(turn.ids[0])], abs=1e-5)


@pytest.mark.parametrize("name", ["num_beams", "do_sample", "max_new_tokens", "eos_token_id", "typical_p"])
def test_arguments_that_would_break_a_promise_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"generation_kwargs.{name} cannot be used"):
        TransformersGenerator(TransformersGenerationConfig(generation_kwargs={name: 2}), policies={})


def test_unknown_arguments_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"supress_tokens.*did you mean suppress_tokens"):
        TransformersGenerator(TransformersGenerationConfig(generation_kwargs={"supress_tokens": [1]}), policies={})


@pytest.mark.rows("GRPO-084")
def test_a_static_cache_samples_the_same() -> None:
    loaded = tiny_model(dtype=torch.float32, spread=2.0)
    requests = requests_of([[5, 6, 7], [8, 9]], 8, each=2)
    usual = generator_of("transformers", loaded).sample_wave(requests)
    calls: list[str] = []
    hook = loaded.module.register_forward_pre_hook(lambda _, args, kwargs: calls.append(type(kwargs["past_key_values"]).__name__), with_kwargs=True)
    static = generator_of("transformers", loaded, cache_implementation="static").sample_wave(requests)
    hook.remove()
    assert set(calls) == {"StaticCache"}
    assert [turn.ids.tolist() for turn in static] == [turn.ids.tolist() for turn in usual]


def test_batches_hold_at_most_batch_size_rows() -> None:
    loaded = tiny_model(dtype=torch.float32, eos_ids=())
    rows: list[int] = []
    hook = loaded.module.register_forward_pre_hook(lambda _, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True)
    turns = generator_of("transformers", loaded, batch_size=3).sample_wave(requests_of([[5, 6, 7], [8, 9]], 2, each=4))
    hook.remove()
    assert rows == [3, 3, 3, 3, 2, 2]
    for turn in turns:
        np.testing.assert_allclose(turn.logprobs, teacher_forced(loaded.module, turn, Sampling()), atol=1e-5)
