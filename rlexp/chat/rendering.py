"""Prompts to token ids and back: the only place that knows chat templates and BOS tokens."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase

from rlexp.config.errors import UserError

RESERVED = ("tokenize", "add_generation_prompt", "continue_final_message", "conversation", "chat_template", "return_dict", "return_tensors")
"""arguments of apply_chat_template that rendering sets itself"""


@dataclass(frozen=True)
class Rendered:
    """A prompt ready to sample from."""

    ids: np.ndarray
    """int64 [prompt length], with exactly the BOS the model expects"""
    text: str
    """the rendered text, special tokens and a `<think>` that the template leaves open included"""
    prompt: Any
    """what rewards see: the text, or the messages with the system prompt"""


class Renderer:
    """Renders prompts for one tokenizer.

    template_kwargs: arguments of the chat template, e.g. {"enable_thinking": False}. system_prompt: put before conversational
    prompts that have no system message of their own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None, system_prompt: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.system_prompt = system_prompt
        taken = sorted(set(self.template_kwargs) & set(RESERVED))
        if taken:
            raise UserError(f"generation.chat_template_kwargs: {', '.join(taken)} is set by rlexp itself; leave it out")
        self.bos = _bos_added(tokenizer)
        self._last: tuple[Any, Rendered | None] = (None, None)

    def render(self, prompt: str | Sequence[Mapping[str, Any]]) -> Rendered:
        """Token ids and text of a prompt: plain text, or a list of messages (rendered with the generation prompt open).

        A conversation that ends with an assistant message is left open after it, to be continued. Raises UserError when there
        is no chat template, the template refuses the messages, or nothing is left to sample from.
        """
        known, rendered = self._last
        if rendered is None or known != prompt:  # the rollouts of a group ask for the same one, one after the other
            rendered = self._render(prompt)
            self._last = copy.deepcopy(prompt), rendered
        return Rendered(rendered.ids.copy(), rendered.text, prompt if isinstance(prompt, str) else self._messages(prompt))

    def _render(self, prompt: str | Sequence[Mapping[str, Any]]) -> Rendered:
        shown: Any = prompt if isinstance(prompt, str) else self._messages(prompt)
        if isinstance(prompt, str):
            text, ids = prompt, self._plain(prompt)
        else:
            text = self._template(shown)
            ids = self._ids(text)
        if not ids:
            raise UserError("a prompt has no tokens: remove the empty prompt from the data")
        return Rendered(np.asarray(ids, np.int64), text, shown)

    def _plain(self, text: str) -> list[int]:
        if self.system_prompt is not None:
            raise UserError(
                "data.system_prompt needs conversational prompts, and the data has plain text: set data.conversational=true, or data.system_prompt=null"
            )
        ids = self._ids(text)
        return ids if self.bos is None or ids[:1] == [self.bos] else [self.bos, *ids]

    def decode(self, ids: Sequence[int] | np.ndarray, special: bool = False) -> str:
        """Text of token ids, without special tokens unless asked for."""
        return str(self.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=not special, clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        # not verbose: it warns of a long text, which the data room refuses or cuts with a message of its own
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _messages(self, prompt: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        messages = [dict(message) for message in prompt]
        if self.system_prompt is not None and not (messages and messages[0].get("role") == "system"):
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return messages

    def _template(self, messages: list[dict[str, Any]]) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the data has conversational prompts and the model's tokenizer has no chat template: set model.chat_template=FILE, or use plain text prompts"
            )
        unfinished = bool(messages) and messages[-1].get("role") == "assistant"
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not unfinished, continue_final_message=unfinished, **self.template_kwargs
            )
        except jinja2.TemplateError as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            fix = "change the data, data.system_prompt, generation.chat_template_kwargs or model.chat_template"
            raise UserError(f"the model's chat template refuses messages with the roles {roles}: {error} ({fix})") from error
        return str(text)


def _bos_added(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The BOS id if the tokenizer puts one before plain text; templates render their own."""
    bos = tokenizer.bos_token_id
    return bos if bos is not None and bos in tokenizer("a")["input_ids"] else None
