"""Rollouts without a model, and reward functions called through the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlexp.config.reward import RewardConfig
from rlexp.records.rollout import Rollout
from rlexp.records.state import TrainerState
from rlexp.records.turn import EOS, Turn
from rlexp.rewards.runner import Metrics, RewardRunner
from rlexp.rewards.terms import Term, terms_of

STATE = TrainerState(global_step=3, max_steps=10)


def rollouts(
    completions: Sequence[Any],
    *,
    ids: Sequence[Sequence[int]] | None = None,
    prompts: Sequence[Any] | None = None,
    prompt_text: str = "",
    special: Sequence[str] = (),
    **columns: Sequence[Any],
) -> list[Rollout]:
    """One rollout for each completion (text or messages); columns give each rollout's task its further entries."""
    made = []
    for number, completion in enumerate(completions):
        prompt = prompts[number] if prompts is not None else "p"
        task = {"prompt": prompt} | {name: values[number] for name, values in columns.items()}
        tokens = np.array(ids[number] if ids is not None else [1, 2], np.int64)
        turn = Turn(np.array([9], np.int64), tokens, np.zeros(len(tokens), np.float32), EOS)
        rollout = Rollout(task, (0, number, "policy"), 0, turns=[turn], prompt=prompt, completion=completion, prompt_text=prompt_text)
        rollout.completion_text_special = special[number] if special else ""
        made.append(rollout)
    return made


def score(
    functions: Sequence[Callable[..., Any] | Term], made: list[Rollout], *, weights: Sequence[float] | None = None, state: TrainerState = STATE, **config: Any
) -> Metrics:
    """Check the columns and score once."""
    runner = runner_of(functions, weights, **config)
    runner.check_columns({name for rollout in made for name in rollout.task})
    return asyncio.run(runner.score(made, state))


def runner_of(functions: Sequence[Callable[..., Any] | Term], weights: Sequence[float] | None = None, **config: Any) -> RewardRunner:
    terms = [function for function in functions if isinstance(function, Term)] or terms_of(functions, weights)  # type: ignore[arg-type]
    return RewardRunner(RewardConfig(**config), terms=terms)


def values(made: list[Rollout], name: str) -> list[float | None]:
    """What a reward gave to each rollout."""
    return [rollout.rewards[name] for rollout in made]


def says(*contents: str) -> list[list[dict[str, str]]]:
    """Completions as one assistant message each."""
    return [[{"role": "assistant", "content": content}] for content in contents]
