"""`reward=exact_match`."""

from __future__ import annotations

from typing import Any

from rlexp.config.reward import ExactMatchRewardConfig
from rlexp.rewards.dispatch import keyword_signature
from rlexp.rewards.patterns import answer_pattern
from rlexp.rewards.text import text_of


class ExactMatch:
    """1.0 if the completion, or what the pattern cuts out of it, equals the answer column, both stripped; else 0.0.

    No score (None) where the answer is None. A pattern that finds nothing scores 0.0.
    """

    def __init__(self, config: ExactMatchRewardConfig) -> None:
        self._config = config
        self._pattern = answer_pattern(config.pattern)
        self.__signature__ = keyword_signature("completions", config.column)

    def __call__(self, *, completions: list[Any], **columns: list[Any]) -> list[float | None]:
        answers = columns[self._config.column]
        return [self._score(text_of(completion), answer) for completion, answer in zip(completions, answers, strict=True)]

    def _score(self, text: str, answer: Any) -> float | None:
        if answer is None:
            return None
        if self._pattern is not None:
            found = self._pattern.search(text)
            if found is None or found.group(1) is None:
                return 0.0
            text = found.group(1)
        given, right = text.strip(), str(answer).strip()
        if self._config.ignore_case:
            given, right = given.casefold(), right.casefold()
        return float(given == right)
