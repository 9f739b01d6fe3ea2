"""generation=continuous_batching on a small model: what it samples, and that it leaves the model as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from local_generators import requests_of, teacher_forced
from models_for_tests import tiny_model

from rlexp.config.errors import UserError
from rlexp.config.generation import ContinuousBatchingGenerationConfig
from rlexp.generation.continuous_batching import ContinuousBatchingGenerator
from rlexp.records.request import Sampling
from rlexp.records.turn import EOS, LENGTH

PROMPTS = [[5, 6, 7, 8, 9], [20, 21, 22]]


def generator_of(loaded, **options) -> ContinuousBatchingGenerator:
    return ContinuousBatchingGenerator(ContinuousBatchingGenerationConfig(**options), policies={"policy": loaded})


@pytest.mark.rows("GRPO-184", "GRPO-187")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7)], ids=["plain", "cold"])
def test_logprobs_and_the_state_of_the_model(sampling: Sampling) -> None:
    loaded = tiny_model(dtype=torch.float32, spread=2.0, eos_ids=tuple(range(15)))
    module = loaded.module.train()
    weights = {name: (value.dtype, value.detach().clone()) for name, value in module.named_parameters()}
    attention, before = module.config._attn_implementation, torch.get_rng_state()
    turns = generator_of(loaded).sample_wave(requests_of(PROMPTS, 12, sampling, each=3))
    assert torch.equal(before, torch.get_rng_state()) and module.training and module.config._attn_implementation == attention
    for name, value in module.named_parameters():
        assert value.dtype == weights[name][0] and torch.equal(value, weights[name][1])
    module.eval()
    for turn, prompt in zip(turns, [prompt for prompt in PROMPTS for _ in range(3)], strict=True):
        assert turn.prompt_ids.tolist() == prompt
        np.testing.assert_allclose(turn.logprobs, teacher_forced(module, turn, sampling), atol=1e-5)
        assert turn.finish == (EOS if turn.ids[-1] < 15 else LENGTH) and (len(turn.ids) == 12 or turn.finish == EOS)
    assert len({tuple(turn.ids) for turn in turns}) > 3


@pytest.mark.rows("GRPO-188")
def test_the_older_name_of_the_option_leads_here() -> None:
    """TRL's deprecated use_transformers_paged: the page of names says what it is called, for the option and for its arguments."""
    page = (Path(__file__).parents[2] / "docs" / "from_trl.md").read_text(encoding="utf-8").splitlines()
    (place,) = [number for number, line in enumerate(page) if line.startswith("| `use_transformers_paged` | the same")]
    assert page[place - 1].startswith("| `use_transformers_continuous_batching`") and "`generation=continuous_batching`" in page[place - 1]
    assert "| `use_transformers_paged` | GRPO | `generation=continuous_batching` |" in page


@pytest.mark.rows("GRPO-185", "GRPO-186")
def test_its_own_arguments() -> None:
    loaded = tiny_model(dtype=torch.float32)
    assert generator_of(loaded)._batching(loaded.module, requests_of(PROMPTS, 4)).max_memory_percent == 0.5
    given = generator_of(loaded, batching_kwargs='{"use_cuda_graph": false, "max_memory_percent": 0.4}')._batching(loaded.module, requests_of(PROMPTS, 4))
    assert given.use_cuda_graph is False and given.max_memory_percent == 0.4
    with pytest.raises(UserError, match=r"batching_kwargs\.page_sise is no argument of transformers' ContinuousBatchingConfig; did you mean page_size\?"):
        generator_of(loaded, batching_kwargs={"page_sise": 16})
    with pytest.raises(UserError, match="seed cannot be used"):
        generator_of(loaded, batching_kwargs={"seed": 1})
