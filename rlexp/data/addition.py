"""`data=addition`: procedural sums, train and held-out tasks disjoint."""

from __future__ import annotations

import numpy as np

from rlexp.config.data import AdditionDataConfig
from rlexp.config.errors import UserError
from rlexp.data.tasks import Task, TaskData, task_data
from rlexp.records import keys
from rlexp.records.addition import addition_problem, held_out_operands


def load(config: AdditionDataConfig, *, seed: int) -> TaskData:
    """Tasks with columns prompt and answer (text). Operands are drawn from 0 .. 10^digits - 1, no pair twice.

    The held-out tasks depend on seed, digits and eval_size only, not on size. Where fewer pairs exist than asked for, all are
    used; raises UserError when the held-out tasks leave none to train on.
    """
    base = 10**config.digits
    pairs = base * base
    left = pairs - config.eval_size
    if left <= 0:
        raise UserError(f"data.eval_size={config.eval_size} takes all {pairs} sums of data.digits={config.digits} and leaves none to train on: lower it")
    held_out = _held_out(config.eval_size, base, seed)
    ranks = keys.generator(seed, "addition", "train").choice(left, min(config.size, left), replace=False)
    return task_data(
        [_task(int(pair), base, config.conversational) for pair in _skip(ranks, held_out)],
        [_task(int(pair), base, config.conversational) for pair in held_out],
    )


def _held_out(count: int, base: int, seed: int) -> np.ndarray:
    """Numbers of the held-out pairs: those that the tiny model's warm start never saw, as far as there are enough."""
    drawn = keys.generator(seed, "addition", "held_out").choice(base * base, min(base * base, 32 * count), replace=False)
    seen = [not held_out_operands(*divmod(int(pair), base)) for pair in drawn]
    return drawn[np.argsort(seen, kind="stable")[:count]]


def _skip(ranks: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The numbers that have these ranks among all numbers not in `taken`."""
    taken = np.sort(taken)
    return ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right")


def _task(pair: int, base: int, conversational: bool) -> Task:
    question, answer = addition_problem(*divmod(pair, base))
    return {"prompt": [{"role": "user", "content": question}] if conversational else question, "answer": answer}
