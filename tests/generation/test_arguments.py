"""generation.* and generation_kwargs become a Sampling."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import ScriptedGenerationConfig

from rlexp.config.errors import UserError
from rlexp.config.generation import GenerationConfig, NativeGenerationConfig, TransformersGenerationConfig
from rlexp.generation.base import free_form, sampling_from
from rlexp.records.request import Sampling


def test_defaults_change_nothing() -> None:
    sampling = sampling_from(NativeGenerationConfig())
    assert sampling == Sampling(1.0, 1.0, 0, None, 1.0)
    assert not sampling.truncated


@pytest.mark.rows("GRPO-077", "GRPO-078", "GRPO-079", "GRPO-080", "GRPO-081", "GRPO-082")
def test_generation_kwargs_beat_the_keys() -> None:
    keys: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "stop": ["a"], "stop_ids": [4]}
    assert sampling_from(NativeGenerationConfig(**keys)) == Sampling(0.7, 0.9, 5, stop=("a",), stop_ids=(4,))
    beaten = NativeGenerationConfig(
        **keys, generation_kwargs={"temperature": 0.5, "stop_strings": "</answer>", "stop_token_ids": [7, 9], "repetition_penalty": 1.1}
    )
    assert sampling_from(beaten) == Sampling(0.5, 0.9, 5, None, 1.1, ("</answer>",), (7, 9))


def test_evaluation_may_be_greedy_whatever_the_keys_say() -> None:
    config = NativeGenerationConfig(temperature=0.7, generation_kwargs={"temperature": 0.9, "top_p": 0.5})
    assert sampling_from(config, temperature=0.0) == Sampling(0.0, 0.5)


@pytest.mark.cases("S36")
@pytest.mark.parametrize("given", ['{"length_penalty": 1e-1}', {"length_penalty": "1e-1"}, {"length_penalty": 1e-1}])
def test_free_form_numbers_are_numbers(given: Any) -> None:
    assert free_form(given, "generation.generation_kwargs") == {"length_penalty": 0.1}
    extra = dict(sampling_from(TransformersGenerationConfig(generation_kwargs=given)).extra)
    assert type(extra["length_penalty"]) is float and extra["length_penalty"] == 0.1


@pytest.mark.cases("S25")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (NativeGenerationConfig(generation_kwargs={"temperature": 0}), ["temperature", "> 0"]),
        (NativeGenerationConfig(generation_kwargs={"top_p": 1.5}), ["top_p", "<= 1"]),
        (NativeGenerationConfig(generation_kwargs={"stop": [""]}), ["stop", "empty"]),
        (NativeGenerationConfig(generation_kwargs={"top_q": 0.5, "num_beams": 2}), ["top_q (did you mean top_p?)", "num_beams", "generation=native"]),
        (ScriptedGenerationConfig(generation_kwargs={"num_beams": 2}), ["num_beams", "generation=scripted"]),
        (NativeGenerationConfig(generation_kwargs={"stop": ["a"], "stop_strings": ["b"]}), ["stop_strings", "same option"]),
        (NativeGenerationConfig(generation_kwargs="{top_p"), ["generation.generation_kwargs", "JSON"]),
        (NativeGenerationConfig(generation_kwargs="[1]"), ["generation.generation_kwargs", "dict"]),
    ],
    ids=lambda value: str(value.generation_kwargs) if isinstance(value, GenerationConfig) else "",
)
def test_wrong_arguments_are_named(config: GenerationConfig, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        sampling_from(config)
    for word in words:
        assert word in str(caught.value)
