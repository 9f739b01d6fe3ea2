"""The text of a completion."""

from __future__ import annotations

from typing import Any


def text_of(completion: Any) -> str:
    """The text itself, or the content of the last assistant message (the final answer when there were several turns)."""
    if isinstance(completion, str):
        return completion
    contents = [message.get("content") for message in completion if message.get("role") == "assistant"]
    content = contents[-1] if contents else None
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
