"""Reward terms: a function with its name and weight."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlexp import registry
from rlexp.config.errors import UserError
from rlexp.config.generation import RolloutConfig
from rlexp.config.reward import RewardConfig


class ModelFunction:
    """A reward function that forwards a network of its own."""

    module: Any
    """torch.nn.Module; ranks may come to hold parts of it"""
    in_parts = False
    """whether they do. Each forward is then an exchange between them, which nobody may leave: such a call has no deadline but that of exchanges"""


@dataclass(frozen=True)
class Term:
    """One term of the total reward."""

    name: str
    """in metrics, in Rollout.rewards and in messages; unique"""
    function: Callable[..., Any]
    """sync or async; see rlexp.rewards.dispatch for what it is called with"""
    weight: float = 1.0
    special_tokens: bool = False
    """give it completions with special tokens, without the final EOS"""


def build_terms(config: RewardConfig, rollout: RolloutConfig | None) -> list[Term]:
    """The terms of a config, named by their keys. Where a term's max_length is null, rollout.max_completion_length is meant.

    Raises UserError naming the term whose target refuses its config.
    """
    terms = []
    for key, term in config.terms.items():
        if rollout is not None and getattr(term, "max_length", 0) is None:
            term = dataclasses.replace(term, max_length=rollout.max_completion_length)
        try:
            function = registry.REWARDS.load(term.name)(term)
        except UserError as error:
            raise UserError(f"reward.terms.{key}: {error}") from error
        terms.append(Term(key, function, term.weight, term.special_tokens))
    return terms


def terms_of(functions: Sequence[Callable[..., Any]], weights: Sequence[float] | None = None) -> list[Term]:
    """Terms of bare functions, for use from Python. Weights are 1 when not given; names are made unique by a suffix _2, _3, ...

    Raises UserError for another number of weights than functions.
    """
    if weights is not None and len(weights) != len(functions):
        raise UserError(f"{len(weights)} reward weights for {len(functions)} reward functions: give one weight for each")
    names = _unique([name_of(function) for function in functions])
    return [Term(name, function, float(weight)) for name, function, weight in zip(names, functions, weights or [1.0] * len(functions), strict=True)]


def name_of(function: Callable[..., Any]) -> str:
    """The function's name, that of the function a partial wraps, or the class of a callable object; "lambda" for a lambda."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else name


def _unique(names: Sequence[str]) -> list[str]:
    made: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in made:
            number += 1
            candidate = f"{name}_{number}"
        made.append(candidate)
    return made
