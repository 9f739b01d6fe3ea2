"""Prompts to token ids: one BOS, template arguments, system prompts, open tags, and text back."""

from __future__ import annotations

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from rlexp.chat.rendering import Renderer
from rlexp.config.errors import UserError
from rlexp.models.tokenizer import CHAT_TEMPLATE, character_tokenizer

QUESTION = [{"role": "user", "content": "12+34="}]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return character_tokenizer()


def adds_bos(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    """The tokenizer with BOS id 1 before everything it encodes, and this chat template."""
    tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})
    assert tokenizer.bos_token_id == 1
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.chat_template = template
    return tokenizer


def test_a_conversation_is_rendered_with_the_answer_open(tokenizer):
    rendered = Renderer(tokenizer).render(QUESTION)
    assert rendered.text == "<|im_start|>user\n12+34=<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.prompt == QUESTION
    assert tokenizer.decode(rendered.ids) == rendered.text
    assert rendered.ids.dtype == "int64"


def test_plain_text_is_only_tokenised(tokenizer):
    rendered = Renderer(tokenizer).render("1+2=")
    assert (rendered.text, rendered.prompt, len(rendered.ids)) == ("1+2=", "1+2=", 4)


@pytest.mark.cases("S21")
@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0]['content'] }}", "{{ '<|im_start|>' }}{{ messages[0]['content'] }}"])
def test_exactly_one_bos(tokenizer, template):
    renderer = Renderer(adds_bos(tokenizer, template))
    assert tokenizer("1")["input_ids"][0] == 1
    for prompt in (QUESTION, "12+34=", "<|im_start|>12+34="):
        ids = renderer.render(prompt).ids.tolist()
        assert ids[0] == 1
        assert ids.count(1) == 1


@pytest.mark.cases("S21")
def test_no_bos_where_the_tokenizer_has_none_and_no_eos_behind_a_prompt(tokenizer):
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)])
    assert tokenizer("1")["input_ids"][-1] == 2
    ids = Renderer(tokenizer).render("12+34=").ids.tolist()
    assert tokenizer.decode(ids) == "12+34="


@pytest.mark.cases("S22")
def test_a_tag_that_the_template_opens_is_in_the_prompt_text(tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE + "{%- if add_generation_prompt -%}{{- '<think>\\n' -}}{%- endif -%}"
    assert Renderer(tokenizer).render(QUESTION).text.endswith("assistant\n<think>\n")


@pytest.mark.rows("GRPO-083")
def test_template_arguments_reach_the_template(tokenizer):
    tokenizer.chat_template = "{% if enable_thinking is defined and not enable_thinking %}<off>{% endif %}{{ messages[0]['content'] }}"
    assert Renderer(tokenizer, {"enable_thinking": False}).render(QUESTION).text == "<off>12+34="
    assert Renderer(tokenizer).render(QUESTION).text == "12+34="
    with pytest.raises(UserError, match=r"generation\.chat_template_kwargs: add_generation_prompt, tokenize is set by rlexp itself"):
        Renderer(tokenizer, {"tokenize": True, "add_generation_prompt": False})


def test_the_system_prompt_comes_first_unless_the_task_has_its_own(tokenizer):
    renderer = Renderer(tokenizer, system_prompt="Add.")
    rendered = renderer.render(QUESTION)
    assert rendered.text.startswith("<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n")
    assert rendered.prompt == [{"role": "system", "content": "Add."}, *QUESTION]
    own = [{"role": "system", "content": "Mine."}, *QUESTION]
    assert renderer.render(own).prompt == own
    assert QUESTION == [{"role": "user", "content": "12+34="}]
    with pytest.raises(UserError, match=r"data\.system_prompt needs conversational prompts"):
        renderer.render("1+2=")


def test_a_started_answer_is_continued(tokenizer):
    rendered = Renderer(tokenizer).render([*QUESTION, {"role": "assistant", "content": "4"}])
    assert rendered.text == "<|im_start|>user\n12+34=<|im_end|>\n<|im_start|>assistant\n4"


def test_prompts_that_cannot_be_rendered_are_refused(tokenizer):
    with pytest.raises(UserError, match="a prompt has no tokens"):
        Renderer(tokenizer).render("")
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UserError, match=r"roles user: System role not supported \(change the data, data\.system_prompt"):
        Renderer(tokenizer).render(QUESTION)
    tokenizer.chat_template = None
    with pytest.raises(UserError, match=r"no chat template: set model\.chat_template=FILE"):
        Renderer(tokenizer).render(QUESTION)


@pytest.mark.cases("S23")
def test_decoding_with_and_without_special_tokens(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = tokenizer("<think>a b</think>c<|im_end|>")["input_ids"]
    renderer = Renderer(tokenizer)
    assert renderer.decode(ids) == "a bc"
    assert renderer.decode(ids[:-1], special=True) == "<think>a b</think>c"
    assert renderer.decode(tokenizer(" a  , b .")["input_ids"]) == " a  , b ."


def test_a_prompt_asked_for_again_is_rendered_once_and_a_changed_one_anew(tokenizer, monkeypatch):
    renderer, calls = Renderer(tokenizer, system_prompt="Add."), []
    template = renderer._template
    monkeypatch.setattr(renderer, "_template", lambda messages: calls.append(1) or template(messages))
    messages = [{"role": "user", "content": "1+2="}]
    first, again = renderer.render(messages), renderer.render([dict(message) for message in messages])
    assert len(calls) == 1 and (again.text, again.prompt, again.ids.tolist()) == (first.text, first.prompt, first.ids.tolist())
    again.ids[0], again.prompt[0]["content"] = 99, "else"  # belongs to who asked
    assert renderer.render(messages).ids.tolist() == first.ids.tolist() and first.prompt[0]["content"] == "Add."
    messages[0]["content"] = "3+4="  # the same list, as an agent loop may go on with it
    messages.append({"role": "assistant", "content": "7"})
    changed = renderer.render(messages)
    assert len(calls) == 2 and "3+4=" in changed.text and changed.ids.tolist() == Renderer(tokenizer, system_prompt="Add.").render(messages).ids.tolist()
