"""What a reward is called with: exactly the parameters it names.

A parameter may be called prompts, completions, completion_ids, trainer_state, log_extra, log_metric, prompt_texts (the rendered
prompts, as text), or like any column of the dataset except prompt. A function with **kwargs gets everything. Parameters with a
default are given when they exist. Names decide, never their number or order.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlexp.config.errors import UserError
from rlexp.records.rollout import Rollout
from rlexp.records.state import TrainerState
from rlexp.rewards.terms import Term

PROVIDED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "prompt_texts")
"""What every run offers beside the dataset's columns"""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function that a call may fill by name."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    positional: tuple[str, ...]
    """those of them that can be given by position only, in order"""
    everything: bool
    """it takes **kwargs"""
    bound: frozenset[str]
    """keyword arguments a functools.partial has fixed already"""


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Read a signature. Raises ValueError for a function without one (some built-ins)."""
    parameters = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    bound = _bound(function)
    named = [parameter for parameter in parameters if parameter.kind not in variable and parameter.name not in bound]
    return Parameters(
        required=tuple(parameter.name for parameter in named if parameter.default is inspect.Parameter.empty),
        optional=tuple(parameter.name for parameter in named if parameter.default is not inspect.Parameter.empty),
        positional=tuple(parameter.name for parameter in named if parameter.kind is inspect.Parameter.POSITIONAL_ONLY),
        everything=any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
        bound=bound,
    )


def keyword_signature(*names: str) -> inspect.Signature:
    """A signature of required keywords: for callable objects whose parameter names come from their config (`__signature__`)."""
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])


def missing_columns(term: Term, columns: Collection[str]) -> str | None:
    """What is wrong with a term for a dataset with these columns, or None."""
    offered = sorted(set(columns) | set(PROVIDED))
    missing = [name for name in parameters_of(term.function).required if name not in offered]
    if not missing:
        return None
    close = difflib.get_close_matches(missing[0], offered, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    present = ", ".join(sorted(columns)) or "none beside prompt"
    wanted = " and ".join(repr(name) for name in missing)
    return f"reward.terms.{term.name} asks for {wanted}, which is no column of the dataset: {hint}(columns: {present}; always there: {', '.join(PROVIDED)})"


@dataclass
class Logged:
    """What one call logged; counts only if the call succeeds."""

    rows: int
    extra: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """name -> the numbers given, in order"""

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Add a column to the rollouts table: one value for each completion. Raises ValueError for another number."""
        values = list(values)
        if len(values) != self.rows:
            raise ValueError(f"log_extra({column!r}) got {len(values)} values, expected {self.rows}")
        self.extra[str(column)] = values

    def log_metric(self, name: str, value: float) -> None:
        """Log a number; the metric is the mean over all calls, on all ranks."""
        self.metrics.setdefault(str(name), []).append(float(value))


def arguments(term: Term, rollouts: Sequence[Rollout], columns: Collection[str], state: TrainerState) -> tuple[list[Any], dict[str, Any], Logged]:
    """Positional and keyword arguments of one call, and where it logs. All data are copies that belong to this call alone.

    columns: of the whole dataset; a task that lacks one has None there.
    """
    wanted = parameters_of(term.function)
    logged = Logged(len(rollouts))
    makers: dict[str, Callable[[], Any]] = {name: functools.partial(_column, rollouts, name) for name in columns}
    makers |= {
        "prompts": lambda: [copy.deepcopy(rollout.prompt) for rollout in rollouts],
        "completions": lambda: [_completion(rollout, term.special_tokens) for rollout in rollouts],
        "completion_ids": lambda: [[int(token) for turn in rollout.turns for token in turn.ids] for rollout in rollouts],
        "prompt_texts": lambda: [rollout.prompt_text for rollout in rollouts],
        "trainer_state": lambda: state,
        "log_extra": lambda: logged.log_extra,
        "log_metric": lambda: logged.log_metric,
    }
    named = [name for name in makers if name not in wanted.bound] if wanted.everything else [*wanted.required, *wanted.optional]
    given = {name: makers[name]() for name in named if name in makers}
    positional = [given.pop(name) for name in wanted.positional if name in given]
    return positional, given, logged


def _column(rollouts: Sequence[Rollout], name: str) -> list[Any]:
    return [copy.deepcopy(rollout.task.get(name)) for rollout in rollouts]


def _completion(rollout: Rollout, special_tokens: bool) -> Any:
    """Text or messages, as the prompt was."""
    if not special_tokens:
        return copy.deepcopy(rollout.completion)
    if isinstance(rollout.completion, str):
        return rollout.completion_text_special
    if len(rollout.completion) != 1:
        raise UserError("reward.terms.*.special_tokens=true needs completions of one message")
    return [{**copy.deepcopy(rollout.completion[0]), "content": rollout.completion_text_special}]


def _bound(function: Callable[..., Any]) -> frozenset[str]:
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return frozenset(names)
