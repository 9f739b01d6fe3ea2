"""The fixed rollouts that both trainers learn from, and their rewards.

Groups of different rewards, completions of 1 to 12 tokens of which one is cut off, prompts of different lengths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

LENGTH = 12
"""longest completion in tokens"""

QUESTIONS = ("2+2=", "what is 3 * 4?", "7-5=", "name a prime number below 10")
ANSWERS = (
    ("4", "5", "it is 4", "2+2=4, four"),
    ("12.", "eleven", "3*4=12 twelv", "1"),
    ("2", "it's two", "12", "7-5=2"),
    ("7", "nine, no: 7", "8", "two or 3"),
)
"""[task][rollout]; a text of LENGTH characters is cut off, all others end with the EOS token"""
REWARDS = ((1.0, 0.0, 1.0, 0.5), (1.0, 0.0, 0.25, 0.0), (1.0, 0.75, 0.0, 1.0), (1.0, 0.0, 0.0, 0.5))

Scores = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Rollouts:
    """What one generation batch samples, the same for both trainers."""

    answers: Sequence[Sequence[str]] = ANSWERS
    """texts by [task][rollout]"""
    rewards: Sequence[Scores] = (REWARDS,)
    """by [reward function][task][rollout]"""
    logprobs: Sequence[Sequence[Sequence[float | None]]] | None = None
    """the sampler's, by [task][rollout][token]; None: -2 for every token"""
    trained: Sequence[Sequence[Sequence[bool]]] | None = None
    """which tokens TRL's env_mask keeps, by [task][rollout][token]; None: all"""
    ended: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """(task, rollout) that a stop string ended: no EOS token, yet not cut off"""

    def changed(self, **values: Any) -> Rollouts:
        """A copy with other values."""
        return replace(self, **values)

    @property
    def group(self) -> int:
        """Rollouts of a task."""
        return len(self.answers[0])

    def ids(self, tokenizer: Any) -> list[list[list[int]]]:
        """Token ids by [task][rollout]."""
        made = []
        for task, texts in enumerate(self.answers):
            encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            finished = [len(text) < LENGTH and (task, number) not in self.ended for number, text in enumerate(texts)]
            made.append([[*ids, tokenizer.eos_token_id] if ends else list(ids) for ids, ends in zip(encoded, finished, strict=True)])
        return made

    def rows(self) -> list[dict[str, Any]]:
        """The dataset: a conversational prompt, and a column with the reward of each answer for every reward function."""
        rows: list[dict[str, Any]] = []
        for task, (question, texts) in enumerate(zip(QUESTIONS, self.answers, strict=True)):
            tables = {f"table{k}": json.dumps(dict(zip(texts, scores[task], strict=True))) for k, scores in enumerate(self.rewards)}
            rows.append({"prompt": [{"role": "user", "content": question}], **tables})
        return rows


def looked_up(completions: Sequence[Any], tables: Sequence[str]) -> list[float | None]:
    """The rewards that the tables give to the completions' texts."""
    return [json.loads(table)[messages[-1]["content"]] for messages, table in zip(completions, tables, strict=True)]


def first(completions: Sequence[Any], table0: Sequence[str], **kwargs: Any) -> list[float | None]:
    """The first reward function, for both trainers."""
    return looked_up(completions, table0)


def second(completions: Sequence[Any], table1: Sequence[str], **kwargs: Any) -> list[float | None]:
    """The second one."""
    return looked_up(completions, table1)
