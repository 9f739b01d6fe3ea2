"""`reward=accuracy`: mathematical equality by math-verify."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from rlexp.config.errors import UserError
from rlexp.config.reward import AccuracyRewardConfig
from rlexp.rewards.dispatch import keyword_signature
from rlexp.rewards.scorer_process import ScorerFailed, ScorerProcess, TookTooLong
from rlexp.rewards.text import text_of

SECONDS_PER_ANSWER = 5.0
"""math-verify's own limit; its alarm signal works in a main thread only and does not interrupt big-number arithmetic"""


class Accuracy:
    """1.0 if the answer equals the gold solution, else 0.0 (row GRPO-126).

    The gold may be LaTeX or a plain expression; where it cannot be parsed there is no score (None). The answer must be LaTeX: a
    \\boxed{} first, else $...$; one that cannot be parsed scores 0.0, as does one that takes longer than SECONDS_PER_ANSWER, which
    is logged in nondeterminism/accuracy_timeout. Logs the columns solution, gold_parsed, answer_parsed.
    """

    def __init__(self, config: AccuracyRewardConfig) -> None:
        """Raises UserError when math-verify is not installed."""
        if importlib.util.find_spec("math_verify") is None:
            raise UserError("reward=accuracy needs the math-verify package: pip install 'rlexp[math]'")
        self._column = config.column
        self._process = ScorerProcess("rlexp.rewards.accuracy:compare", SECONDS_PER_ANSWER)
        self.__signature__ = keyword_signature("completions", config.column, "log_extra", "log_metric")

    def __call__(
        self, *, completions: list[Any], log_extra: Callable[[str, list[Any]], None], log_metric: Callable[[str, float], None], **columns: list[Any]
    ) -> list[float | None]:
        golds = columns[self._column]
        results = [self._compare(gold, text_of(completion), log_metric) for gold, completion in zip(golds, completions, strict=True)]
        log_extra("solution", [None if gold is None else str(gold) for gold in golds])
        log_extra("gold_parsed", [gold for _, gold, _ in results])
        log_extra("answer_parsed", [answer for _, _, answer in results])
        return [score for score, _, _ in results]

    def _compare(self, gold: Any, answer: str, log_metric: Callable[[str, float], None]) -> tuple[float | None, str, str]:
        if gold is None:
            return None, "", ""
        try:
            return self._process.call(str(gold), answer)
        except TookTooLong:
            log_metric("nondeterminism/accuracy_timeout", 1.0)
            return 0.0, "", ""
        except ScorerFailed as error:
            raise RuntimeError(f"math-verify failed on the answer {answer[-200:]!r}: {error}") from error


@functools.lru_cache(maxsize=1024)
def _parsed_gold(gold: str) -> list[Any]:
    from math_verify import parse

    return parse(gold, parsing_timeout=None)


def compare(gold: str, answer: str) -> tuple[float | None, str, str]:
    """Score, parsed gold and parsed answer of one pair; runs in the scorer process, whose limits replace math-verify's."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off
    right = _parsed_gold(gold)
    if not right:
        return None, "", ""
    extraction = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=NormalizationConfig(units=True))]
    given = parse(answer, extraction_config=extraction, extraction_mode="first_match", parsing_timeout=None)
    return float(verify(right, given, timeout_seconds=None)), str(right), str(given)
