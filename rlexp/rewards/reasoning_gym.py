"""`reward=reasoning_gym`: the scorer of the reasoning-gym dataset a task came from."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable
from typing import Any

from rlexp.config.errors import UserError
from rlexp.config.reward import ReasoningGymRewardConfig
from rlexp.rewards.patterns import answer_pattern
from rlexp.rewards.scorer_process import ScorerFailed, ScorerProcess, TookTooLong
from rlexp.rewards.text import text_of

SECONDS_PER_ANSWER = 5.0


class ReasoningGymScore:
    """What the dataset's own score_answer gives, between 0.0 and 1.0; needs the columns of data=reasoning_gym.

    Many of these scorers raise on an answer they cannot read ("hello" where a number is wanted) and some evaluate it: such an answer
    scores 0.0 and is counted in reasoning_gym/unreadable_answers, one that takes too long in nondeterminism/reasoning_gym_timeout.
    """

    def __init__(self, config: ReasoningGymRewardConfig) -> None:
        """Raises UserError when reasoning-gym is not installed."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise UserError("reward=reasoning_gym needs the reasoning-gym package: pip install 'rlexp[gym]'")
        self._pattern = answer_pattern(config.pattern)
        self._feedback = config.feedback
        self._process = ScorerProcess("rlexp.rewards.reasoning_gym:score_answer", SECONDS_PER_ANSWER)

    def __call__(
        self,
        *,
        completions: list[Any],
        entry: list[dict[str, Any]],
        gym_dataset: list[dict[str, Any]],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
    ) -> list[float | None]:
        answers = [self._answer(text_of(completion)) for completion in completions]
        rows = list(zip(answers, entry, gym_dataset, strict=True))
        scores: list[float | None] = [None if item is None else self._score(answer, item, dataset, log_metric) for answer, item, dataset in rows]
        if self._feedback:
            log_extra("feedback", [_feedback(answer, item, score) for (answer, item, _), score in zip(rows, scores, strict=True)])
        return scores

    def _answer(self, text: str) -> str:
        found = self._pattern.search(text) if self._pattern is not None else None
        return (found.group(1) or "" if found is not None else text).strip()

    def _score(self, answer: str, item: dict[str, Any], dataset: dict[str, Any], log_metric: Callable[[str, float], None]) -> float:
        try:
            score, readable = self._process.call(dataset["name"], json.dumps(dataset["params"], sort_keys=True), answer, item)
        except TookTooLong:
            log_metric("nondeterminism/reasoning_gym_timeout", 1.0)
            return 0.0
        except ScorerFailed as error:
            raise RuntimeError(f"reasoning-gym's scorer of {dataset} cannot be made: {error}") from error
        log_metric("reasoning_gym/unreadable_answers", float(not readable))
        return score


def _feedback(answer: str, item: dict[str, Any] | None, score: float | None) -> str | None:
    """What to say about an answer; None for a right one, and where there is nothing to compare with."""
    if item is None or score is None or score >= 1.0:
        return None
    return f"Your answer was {answer!r}, which is wrong. The right answer is {item['answer']}."


@functools.lru_cache(maxsize=64)
def _scorer(name: str, params: str) -> Callable[..., float]:
    """The scorer of a dataset as it was configured: some depend on their parameters."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=1, seed=0, **json.loads(params)).score_answer


def score_answer(name: str, params: str, answer: str, item: dict[str, Any]) -> tuple[float, bool]:
    """The score of one answer, and whether the scorer could read it; runs in the scorer process."""
    scorer = _scorer(name, params)
    try:
        return float(scorer(answer, item)), True
    except Exception:
        return 0.0, False
