"""Prompts that are too long: refused, left out, or cut on the left, before training starts."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, cast

from rlexp.config.errors import UserError
from rlexp.data.columns import Rows
from rlexp.data.tasks import Task, TaskData

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Fit:
    """How long a prompt may be. tokens: prompt -> its token ids, as the generator will get them."""

    tokens: Callable[[Any], Sized]
    context: int
    max_length: int | None
    mode: str
    """data.overlong_prompt: error, drop or cut_left"""

    @property
    def limit(self) -> int:
        """Longest prompt: data.max_prompt_length, and at least one token of the context is left to sample."""
        return min(self.max_length or self.context, self.context - 1)

    def measure(self, task: Task, where: str) -> int:
        """Tokens of a prompt. Raises UserError for one without tokens, and for one that is too long unless that is allowed."""
        length = len(self.tokens(task["prompt"]))
        if length == 0:
            raise UserError(f"{where}: the prompt has no tokens; give it some text")
        if length > self.limit and self.mode == "error":
            raise UserError(f"{where} ({str(task['prompt'])[:60]!r}): {self._too_long(length)}; {self._fix()}")
        return length

    def _too_long(self, length: int) -> str:
        if self.max_length is not None and self.max_length < self.context:
            return f"the prompt has {length} tokens, more than data.max_prompt_length: {length} > {self.max_length}"
        if length > self.context:
            return f"the prompt has {length} tokens, more than the model's context: {length} > {self.context}"
        return f"the prompt has {length} tokens, which leaves none of the model's context of {self.context} to sample"

    def _fix(self) -> str:
        longer = "raise it" if self.max_length is not None and self.max_length < self.context else "use a model with a longer context"
        return f"{longer}, shorten the prompt, or set data.overlong_prompt=drop or cut_left"


def fit_prompts(data: TaskData, tokens: Callable[[Any], Sized], *, context: int, max_length: int | None, mode: str) -> tuple[TaskData, int]:
    """Apply data.overlong_prompt to training and held-out tasks. Returns the data and the length of the longest prompt left.

    tokens: prompt -> token ids. context: longest sequence of the model. max_length: data.max_prompt_length. Dropped tasks are
    gone from the data; cut ones stay as they are, and `prompt_limit` says how many of a prompt's last tokens to keep. Both are
    counted in the data returned. A stream is checked while it is read, and its longest prompt counts as 0.
    """
    fit = Fit(tokens, context, max_length, mode)
    data = dataclasses.replace(data, prompt_limit=fit.limit if mode == "cut_left" else None)
    longest = 0
    if data.sized:
        train = cast(Sequence[Task], data.train)
        data.train, longest = _fit_sized(data, train, fit, "training")
        if not len(data.train):
            raise UserError(f"every prompt is longer than {fit.limit} tokens, so data.overlong_prompt=drop leaves no training task: {fit._fix()}")
    else:
        data.train = _FittedStream(data, data.train, fit)
    data.held_out, longest_held_out = _fit_sized(data, data.held_out, fit, "held-out")
    if data.dropped or data.cut:
        log.warning(
            "prompts longer than %d tokens: %d tasks left out, %d prompts cut on the left (data.overlong_prompt=%s)", fit.limit, data.dropped, data.cut, mode
        )
    return data, max(longest, longest_held_out)


def _fit_sized(data: TaskData, tasks: Sequence[Task], fit: Fit, kind: str) -> tuple[Sequence[Task], int]:
    lengths = [fit.measure(task, f"{kind} task {index}") for index, task in enumerate(tasks)]
    overlong = sum(length > fit.limit for length in lengths)
    if fit.mode == "cut_left":
        data.cut += overlong
        return tasks, min(max(lengths, default=0), fit.limit)
    data.dropped += overlong
    kept = [index for index, length in enumerate(lengths) if length <= fit.limit]
    longest = max((lengths[index] for index in kept), default=0)
    return (Rows(tasks, kept, lambda task: task) if overlong else tasks), longest


class _FittedStream:
    """A stream whose prompts are measured as they come; counts into `data`, each task at most once."""

    def __init__(self, data: TaskData, source: Iterable[Task], fit: Fit) -> None:
        self._data = data
        self._source = source
        self._fit = fit
        self._seen = 0

    def __iter__(self) -> Iterator[Task]:
        for index, task in enumerate(self._source):
            overlong = self._fit.measure(task, f"training task {index}") > self._fit.limit
            if overlong and index >= self._seen:
                self._data.dropped += self._fit.mode == "drop"
                self._data.cut += self._fit.mode == "cut_left"
            self._seen = max(self._seen, index + 1)
            if not (overlong and self._fit.mode == "drop"):
                yield task
