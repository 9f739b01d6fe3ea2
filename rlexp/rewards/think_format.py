"""`reward=think_format`."""

from __future__ import annotations

import re
from typing import Any

from rlexp.config.reward import ThinkFormatRewardConfig
from rlexp.rewards.text import text_of

OPEN, CLOSE = "<think>", "</think>"
_BLOCK = re.compile(rf"{OPEN}(?!.*{OPEN}).*?{CLOSE}", re.DOTALL)


class ThinkFormat:
    """1.0 if the text starts with one think block that is closed, else 0.0 (row GRPO-127).

    Where the rendered prompt ends with <think>, as some chat templates do, that tag belongs to the text. If the tags are special
    tokens of the tokenizer, set special_tokens=true: otherwise the text has none.
    """

    def __init__(self, config: ThinkFormatRewardConfig) -> None:
        del config

    def __call__(self, *, completions: list[Any], prompt_texts: list[str]) -> list[float]:
        return [float(self._fits(text_of(completion), prompt)) for completion, prompt in zip(completions, prompt_texts, strict=True)]

    @staticmethod
    def _fits(text: str, prompt: str) -> bool:
        opened = OPEN if prompt.rstrip().endswith(OPEN) else ""
        return _BLOCK.match(opened + text) is not None
