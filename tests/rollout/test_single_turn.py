"""The texts and ids of a single-turn rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from local_generators import generator_of
from models_for_tests import tiny_model
from table_model import word_tokenizer
from tokenizers import processors

from rlexp.chat.rendering import Renderer
from rlexp.models.tokenizer import CHAT_TEMPLATE
from rlexp.records.request import Request, Sampling
from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS, LENGTH, Turn
from rlexp.rollout.agent_loops.single_turn import single_turn
from rlexp.rollout.start import Start


class Fixed:
    """Answers with the ids given."""

    version = 0
    provides: frozenset[str] = frozenset()

    def __init__(self, ids: list[int], finish: str) -> None:
        self.ids, self.finish = np.array(ids), finish

    def set_version(self, version: int) -> None:
        self.version = version

    async def sample(self, request: Request) -> Turn:
        return Turn(request.ids, self.ids, np.zeros(len(self.ids), np.float32), self.finish)


def rolled(prompt: Any, generator: Any, renderer: Renderer, **options: Any) -> Rollout:
    start = Start({"prompt": prompt}, 0, 3, 2, 1, "train", Sampling(), 8, **options)
    (rollout,) = asyncio.run(single_turn(start, generator, renderer))
    return rollout


@pytest.mark.cases("S23")
@pytest.mark.rows("GRPO-118", "GRPO-119")
@pytest.mark.parametrize("finish", [EOS, LENGTH])
def test_special_tokens_in_and_out_of_the_text(finish: str) -> None:
    words = ["<eos>", "p", "q", "r", "a", "b", *"cdefgh", "<think>", "</think>"]
    tokenizer = word_tokenizer(words, special=(12, 13), eos=0)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    ids = [12, 4, 13, 5, 0] if finish == EOS else [12, 4, 13, 5]
    for prompt, completion in (("p", "ab"), ([{"role": "user", "content": "p"}], [{"role": "assistant", "content": "ab"}])):
        rollout = rolled(prompt, Fixed(ids, finish), Renderer(tokenizer))
        assert (rollout.completion, rollout.completion_text) == (completion, "ab")
        assert rollout.completion_text_special == "<think>a</think>b"
        assert rollout.turns[0].ids.tolist() == ids
        assert (rollout.group, rollout.index, rollout.prompt) == ((0, 3, "policy"), 2, prompt)
        assert rollout.truncated == (finish == LENGTH)


@pytest.mark.cases("S21")
@pytest.mark.parametrize("backend", ["native", "transformers"])
@pytest.mark.parametrize("prompt", ["hi", [{"role": "user", "content": "hi"}]], ids=["text", "messages"])
def test_exactly_one_bos(backend: str, prompt: Any) -> None:
    loaded = tiny_model()
    tokenizer = loaded.tokenizer
    tokenizer.bos_token = "<|im_start|>"
    bos = tokenizer.bos_token_id
    assert bos == 1
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.chat_template = "{{ bos_token }}" + CHAT_TEMPLATE.replace("<|im_start|>", "")
    turn = rolled(prompt, generator_of(backend, loaded), Renderer(tokenizer)).turns[0]
    assert turn.prompt_ids[0] == 1 and (turn.prompt_ids == 1).sum() == 1
    assert "hi" in tokenizer.decode(turn.prompt_ids)
