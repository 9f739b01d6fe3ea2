"""Decoding in steps of one shape gives what plain decoding gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from local_generators import generator_of, requests_of, teacher_forced
from models_for_tests import tiny_model

from rlexp.config.errors import UserError
from rlexp.generation.native import NativeGenerator
from rlexp.records.request import Request, Sampling

PROMPTS = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11, 12]]


def buffers_of(generator: NativeGenerator, requests: list[Request]) -> list[tuple[int, int]]:
    """(rows, positions of the mask) of every forward that decodes."""
    shapes: list[tuple[int, int]] = []

    def note(_: object, args: object, options: dict[str, torch.Tensor]) -> None:
        if options["attention_mask"] is not None and options["attention_mask"].ndim == 4:
            shapes.append((len(options["input_ids"]), options["attention_mask"].shape[-1]))

    hook = generator.policies["policy"].module.register_forward_pre_hook(note, with_kwargs=True)
    generator.sample_wave(requests)
    hook.remove()
    return shapes


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["ragged", "one prompt"])
def test_same_tokens_and_log_probs_as_plain_steps(prompts: list[list[int]], attention: str) -> None:
    loaded = tiny_model(eos_ids=(3, 4, 5))
    loaded.module.float().set_attn_implementation(attention)
    requests = requests_of(prompts, 24, each=6)
    plain = generator_of("native", loaded).sample_wave(requests)
    fixed = generator_of("native", loaded, cuda_graphs=True).sample_wave(requests)
    assert len({len(turn.ids) for turn in plain}) > 3  # rows left at different times
    for one, other in zip(plain, fixed, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        np.testing.assert_allclose(other.logprobs, teacher_forced(loaded.module, other, Sampling()), atol=1e-5)


def test_shapes_change_only_when_half_of_the_rows_have_left() -> None:
    generator = generator_of("native", tiny_model(eos_ids=()), cuda_graphs=True)
    requests = [Request(np.array([1, 2]), i, 2 + i, Sampling(), order=(i,)) for i in range(8)]
    assert isinstance(generator, NativeGenerator)
    shapes = buffers_of(generator, requests)
    assert [rows for rows, _ in shapes] == [8] * 4 + [4] * 2 + [2] + [1]
    assert {positions for _, positions in shapes} == {2 + 9}


def test_other_attention_than_full_is_refused() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    loaded = tiny_model(eos_ids=())
    loaded.module = MistralForCausalLM(MistralConfig(**sizes, sliding_window=4)).eval()
    with pytest.raises(UserError, match="cuda_graphs=true serves models with full attention in every layer, and MistralForCausalLM"):
        generator_of("native", loaded, cuda_graphs=True).sample_wave(requests_of([[1, 2]], 4))
