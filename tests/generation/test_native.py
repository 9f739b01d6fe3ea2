"""What the native sampler saves: one prefill per prompt, rows that leave, bounded caches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from local_generators import generator_of, requests_of, teacher_forced
from models_for_tests import tiny_model

from rlexp.generation.native import NativeGenerator
from rlexp.records.request import Request, Sampling


def shapes_of(generator: NativeGenerator, requests: list[Request]) -> list[tuple[int, int]]:
    """(rows, tokens) of every forward of a wave."""
    shapes: list[tuple[int, int]] = []
    module = generator.policies["policy"].module
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True)
    generator.sample_wave(requests)
    hook.remove()
    return shapes


def test_each_distinct_prompt_is_prefilled_once() -> None:
    generator = generator_of("native", tiny_model(eos_ids=()))
    shapes = shapes_of(generator, requests_of([[1, 2, 3, 4], [5, 6], [1, 2, 3, 4]], 3, each=4))
    assert shapes == [(2, 4), (12, 1), (12, 1)]


def test_rows_that_have_ended_leave() -> None:
    generator = generator_of("native", tiny_model(eos_ids=()))
    requests = [Request(np.array([1, 2]), i, 2 + i, Sampling(), order=(i,)) for i in range(4)]
    assert [rows for rows, _ in shapes_of(generator, requests)] == [1, 4, 3, 2, 1]


def test_waves_stay_within_their_bound() -> None:
    generator = generator_of("native", tiny_model(eos_ids=()), max_wave_tokens=64)
    requests = requests_of([[1] * 8, [2] * 3], 8, each=5)  # 11 and 16 positions a row: five short ones at once, then four long ones
    rows = [rows for rows, tokens in shapes_of(generator, requests) if tokens == 1]
    assert max(rows) == 5 and sum(rows) == 10 * 7 and rows.count(4) == 7
    alone = requests_of([[3] * 70], 8)  # one row may exceed the bound: it cannot be made smaller
    assert len(generator.sample_wave(alone)[0].ids) == 8


def test_the_composition_of_waves_follows_the_order() -> None:
    generator = generator_of("native", tiny_model(eos_ids=()), max_wave_tokens=64)
    requests = requests_of([[1] * 12, [2] * 4, [3] * 20, [4] * 7], 6, each=3)
    shapes = shapes_of(generator, requests)
    assert shapes == shapes_of(generator, requests[::-1]) == shapes_of(generator, requests[5:] + requests[:5])


@pytest.mark.parametrize("kind", ["sliding", "no_logits_to_keep"])
def test_unusual_models(kind: str) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(1)
    window = 6 if kind == "sliding" else None
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = MistralConfig(**sizes, sliding_window=window)
    config.eos_token_id = config.bos_token_id = None
    module = MistralForCausalLM(config).double().eval()
    loaded = tiny_model(eos_ids=tuple(range(5)))
    loaded.module = module
    if kind == "no_logits_to_keep":
        forward = module.forward
        module.forward = lambda input_ids, attention_mask, position_ids, past_key_values=None, use_cache=None: forward(
            input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache
        )
    turns = generator_of("native", loaded).sample_wave(requests_of([[7, 8, 9, 10], [11, 12]], 16, each=3))
    if kind == "no_logits_to_keep":
        del module.forward
    assert max(len(turn.ids) for turn in turns) > 8
    for turn in turns:
        np.testing.assert_allclose(turn.logprobs, teacher_forced(module, turn, Sampling()), atol=1e-5)


def test_long_completions_outgrow_the_first_buffer() -> None:
    loaded = tiny_model(eos_ids=())
    turn = generator_of("native", loaded).sample_wave(requests_of([[4, 5]], 150))[0]
    assert len(turn.ids) == 150
    np.testing.assert_allclose(turn.logprobs, teacher_forced(loaded.module, turn, Sampling()), atol=1e-6)


def test_a_request_outside_a_wave_is_its_own() -> None:
    import asyncio

    generator = generator_of("native", tiny_model())
    request = requests_of([[4, 5]], 5)[0]
    assert asyncio.run(generator.sample(request)).ids.tolist() == generator.sample_wave([request])[0].ids.tolist()
