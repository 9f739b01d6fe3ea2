"""Calls the reward functions and fills in the rewards of rollouts."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.advantages.total import weighted_total
from rlexp.config.errors import UserError
from rlexp.config.generation import RolloutConfig
from rlexp.config.reward import RewardConfig
from rlexp.records.rollout import Rollout
from rlexp.records.state import TrainerState
from rlexp.rewards.dispatch import Logged, arguments, missing_columns, parameters_of
from rlexp.rewards.errors import RewardError
from rlexp.rewards.results import checked
from rlexp.rewards.terms import ModelFunction, Term, build_terms
from rlexp.rewards.workers import AsyncWorker, Late, Raised, Returned, SyncWorker

log = logging.getLogger(__name__)

Metrics = dict[str, tuple[float, float]]
"""name -> (sum, count)"""

TIMEOUT_METRIC = "nondeterminism/reward_timeout"
"""share of a batch's calls that were stopped by reward.timeout: results then depend on the clock"""

_NAMED_ROWS = 8
"""unscored rollouts that a warning names"""


@dataclass
class _Scored:
    """What one call of a term gave."""

    values: list[float | None]
    logged: Logged
    failed: bool = False
    late: bool = False


@dataclass
class Scores:
    """What all terms say about some rollouts, not yet filled in."""

    rollouts: Sequence[Rollout]
    terms: list[_Scored]


class RewardRunner:
    """Scores rollouts with several terms (rows GRPO-115 to GRPO-124).

    Sync functions run one after the other in a thread of their own, async ones together on an event loop of their own. Each call
    has the deadline reward.timeout. reward.on_error says what a late or raising call means; a return value of the wrong type,
    length or kind of number always stops the run.
    """

    def __init__(self, config: RewardConfig, *, rollout: RolloutConfig | None = None, terms: Sequence[Term] | None = None) -> None:
        """rollout: where a term without a max_length finds the longest completion. terms: instead of config.terms.

        Raises UserError for a function that cannot be found, is wrongly configured, or has no readable parameters.
        """
        self.config = config
        self.terms = list(terms) if terms is not None else build_terms(config, rollout)
        if not self.terms:
            raise UserError("no reward is chosen: set reward=[exact_match] or another")
        for term in self.terms:
            try:
                parameters_of(term.function)
            except (TypeError, ValueError) as error:
                raise UserError(f"reward.terms.{term.name}: the parameters of {term.function!r} cannot be read: wrap it in a function of yours") from error
        self._columns: frozenset[str] | None = None
        self._sync, self._async = SyncWorker(), AsyncWorker()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._reported: set[str] = set()

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise UserError for each required parameter that neither the run nor these dataset columns provide."""
        self._columns = frozenset(columns) - {"prompt"}
        problems = [problem for term in self.terms if (problem := missing_columns(term, self._columns))]
        if problems:
            raise UserError("\n".join(problems))

    async def score(self, rollouts: Sequence[Rollout], state: TrainerState) -> Metrics:
        """Fill in rewards, reward and extra of each rollout. Returns what was logged, and failed calls, as name -> (sum, count).

        Raises RewardError as reward.on_error says. The rollouts' data are never changed by a reward: it gets copies.
        """
        return self.fill([await self.call(rollouts, state)]) if rollouts else {}

    @property
    def models(self) -> list[ModelFunction]:
        """The functions that forward a network, in the order of their terms."""
        functions: list[object] = [term.function for term in self.terms]
        return [function for function in functions if isinstance(function, ModelFunction)]

    @property
    def overlap(self) -> bool:
        """Whether the rollouts of each task are to be scored by themselves (reward.overlap)."""
        return self.config.overlap

    async def call(self, rollouts: Sequence[Rollout], state: TrainerState) -> Scores:
        """Call every term once for these rollouts, at least one. Several calls may run at the same time; sync functions take turns."""
        if self._columns is None:
            self.check_columns({name for rollout in rollouts for name in rollout.task})
        return Scores(rollouts, await self._call_all(rollouts, state))

    def fill(self, scores: Sequence[Scores]) -> Metrics:
        """Fill in what the calls of one batch found, in the order given. Returns metrics as `score` does."""
        for part in scores:
            self._fill(part)
        self._name_unscored([rollout for part in scores for rollout in part.rollouts])
        return self._metrics(scores)

    async def _call_all(self, rollouts: Sequence[Rollout], state: TrainerState) -> list[_Scored]:
        results: dict[str, _Scored | BaseException] = {}
        together = [term for term in self.terms if _is_async(term.function)]
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            for term in self.terms:
                if term not in together:
                    results[term.name] = await self._call(term, rollouts, state)
        waited = await asyncio.gather(*(self._call(term, rollouts, state) for term in together), return_exceptions=True)
        results.update(zip((term.name for term in together), waited, strict=True))
        ordered = [results[term.name] for term in self.terms]
        for result in ordered:
            if isinstance(result, BaseException):
                raise result
        return [result for result in ordered if isinstance(result, _Scored)]

    async def _call(self, term: Term, rollouts: Sequence[Rollout], state: TrainerState) -> _Scored:
        positional, named, logged = arguments(term, rollouts, self._columns or (), state)
        call = functools.partial(term.function, *positional, **named)
        try:
            outcome = await self._run(term.function, call)
        except Late:
            message = f"reward '{term.name}' was not done after reward.timeout={self.config.timeout:g} s"
            return self._failed(term, len(rollouts), message, "raise reward.timeout", None)
        if isinstance(outcome, Raised):
            return self._failed(term, len(rollouts), f"reward '{term.name}' raised {_described(outcome.error)}", "fix the function", outcome.error)
        return _Scored(checked(term.name, outcome.value, len(rollouts)), logged)

    async def _run(self, function: Callable[..., Any], call: Callable[[], Any]) -> Returned | Raised:
        """Run one call, and what it returns if that must be awaited, within reward.timeout."""
        if _is_async(function):
            return await self._async.call(call, self.config.timeout)
        began = time.monotonic()
        outcome = await self._sync.call(call, None if getattr(function, "in_parts", False) else self.config.timeout)
        if isinstance(outcome, Returned) and inspect.isawaitable(outcome.value):
            awaitable = outcome.value
            return await self._async.call(lambda: awaitable, self.config.timeout - (time.monotonic() - began))
        return outcome

    def _failed(self, term: Term, rows: int, message: str, fix: str, cause: BaseException | None) -> _Scored:
        """A late or raising call: an error, or the scores that reward.on_error wants instead."""
        if self.config.on_error == "stop":
            raise RewardError(term.name, f"{message}; {fix}, or set reward.on_error=none or value (reward.terms.{term.name})") from cause
        value = None if self.config.on_error == "none" else self.config.error_value
        if term.name not in self._reported:
            self._reported.add(term.name)
            details = "".join(traceback.format_exception(cause)) if cause is not None else ""
            log.warning(
                "%s; scored %s (reward.on_error=%s); further failures are only counted, in rewards/%s/errors\n%s",
                message,
                value,
                self.config.on_error,
                term.name,
                details,
            )
        return _Scored([value] * rows, Logged(rows), failed=True, late=cause is None)

    def _fill(self, scores: Scores) -> None:
        table = np.array([[np.nan if value is None else value for value in result.values] for result in scores.terms], dtype=np.float64).T
        totals = weighted_total(table, [term.weight for term in self.terms])
        for row, rollout in enumerate(scores.rollouts):
            rollout.rewards = {term.name: result.values[row] for term, result in zip(self.terms, scores.terms, strict=True)}
            rollout.reward = float(totals[row])
            for result in scores.terms:
                rollout.extra.update({column: values[row] for column, values in result.logged.extra.items()})

    def _name_unscored(self, rollouts: Sequence[Rollout]) -> None:
        unscored = [rollout for rollout in rollouts if np.isnan(rollout.reward)]
        if unscored:
            rest = f" and {len(unscored) - _NAMED_ROWS} more" if len(unscored) > _NAMED_ROWS else ""
            names = ", ".join(f"{rollout.group}/{rollout.index}" for rollout in unscored[:_NAMED_ROWS])
            log.warning("no reward scored %d rollouts, which get advantage 0 (group/number): %s%s", len(unscored), names, rest)

    def _metrics(self, scores: Sequence[Scores]) -> Metrics:
        """Numbers are added up term by term and call by call, so that a batch scored in parts has the same sums to the last bit."""
        metrics: Metrics = {}
        late = 0
        for number, term in enumerate(self.terms):
            results = [part.terms[number] for part in scores]
            for name in dict.fromkeys(name for result in results for name in result.logged.metrics):
                given = [value for result in results for value in result.logged.metrics.get(name, ())]
                before = metrics.get(name, (0.0, 0.0))
                metrics[name] = (before[0] + sum(given), before[1] + len(given))
            if self.config.on_error != "stop":
                metrics[f"rewards/{term.name}/errors"] = (float(sum(result.failed for result in results)), float(len(results)))
            late += sum(result.late for result in results)
        if late:
            metrics[TIMEOUT_METRIC] = (float(late), float(len(self.terms) * len(scores)))
        return metrics


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: async def, a partial of one, or an object with async __call__."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _described(error: BaseException) -> str:
    """Type, message and place of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
