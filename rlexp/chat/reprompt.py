"""The prompt a teacher reads: the task's own with a solution and feedback put into it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.config.errors import UserError
from rlexp.records.reprompt import Templates

_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_OPENED = re.compile(r"<think>\s*$")
_END = "</think>"

Prompt = str | Sequence[Mapping[str, Any]]


def reprompted(prompt: Prompt, templates: Templates, solution: str | None, feedback: str | None) -> Prompt:
    """The task's prompt with solution and feedback: plain text as a whole, of a conversation the last message, which must be the user's.

    Earlier messages stay. Of a message made of parts, the text parts are joined by spaces. Raises UserError for another last role.
    """
    if isinstance(prompt, str):
        return templates.filled(prompt, solution, feedback)
    check_last_message(prompt)
    return [*prompt[:-1], {"role": "user", "content": templates.filled(_text(prompt[-1]["content"]), solution, feedback)}]


def check_last_message(prompt: Prompt, where: str = "a prompt") -> None:
    """Raise UserError unless a conversation ends with a message of the user: there is nothing else to put a solution into."""
    role = None if isinstance(prompt, str) else prompt[-1].get("role")
    if role not in (None, "user"):
        raise UserError(
            f"{where}: its last message is from the {role}; algorithm=sdpo puts solutions into the user's, so it must be the last (change the data)"
        )


def without_thinking(text: str, prompt_text: str = "") -> str:
    """A completion without its <think>...</think> blocks, and stripped.

    prompt_text: the rendered prompt; where it left <think> open, the completion begins inside such a block.
    """
    if _OPENED.search(prompt_text) and _END in text:
        text = text.split(_END, 1)[1]
    return _THINKING.sub("", text).strip()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if isinstance(part, Mapping) and part.get("type", "text") == "text")
