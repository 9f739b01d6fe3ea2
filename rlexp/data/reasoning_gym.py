"""`data=reasoning_gym`: any procedural dataset of the reasoning-gym package (https://github.com/open-thought/reasoning-gym)."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from typing import Any

from rlexp.config.data import ReasoningGymDataConfig
from rlexp.config.errors import UserError
from rlexp.data.tasks import Task, TaskData, task_data
from rlexp.records import keys

_FEW_NEW = 1000
"""questions drawn in a row without a new one, after which a dataset counts as exhausted"""


def load(config: ReasoningGymDataConfig, *, seed: int) -> TaskData:
    """Tasks with columns prompt, answer, entry (the item as reasoning-gym made it) and gym_dataset (its name and parameters).

    The reward reasoning_gym scores with `entry` and `gym_dataset`. The held-out questions are distinct and none of them is
    trained on; where a dataset has fewer questions than asked for, those that exist are used.
    """
    held_out = list(itertools.islice(_distinct(_entries(config, keys.key(seed, "reasoning_gym", "held_out"))), config.eval_size))
    taken = {entry["question"] for entry in held_out}
    entries = itertools.islice(_entries(config, keys.key(seed, "reasoning_gym", "train")), config.size)
    train = [entry for entry in entries if entry["question"] not in taken]
    if not train:
        raise UserError(
            f"data.eval_size={config.eval_size} takes all questions of data.dataset={config.dataset}: lower it, or let data.params allow more questions"
        )
    return task_data([_task(entry, config) for entry in train], [_task(entry, config) for entry in held_out])


def _entries(config: ReasoningGymDataConfig, key: int) -> Iterator[dict[str, Any]]:
    """Items without end; item i is made from the seed and i alone."""
    dataset = _create(config, key % 2**31)
    return (dataset[index] for index in itertools.count())


def _distinct(entries: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    repeats = 0
    for entry in entries:
        if entry["question"] not in seen:
            seen.add(entry["question"])
            repeats = 0
            yield entry
        elif (repeats := repeats + 1) == _FEW_NEW:
            return


def _create(config: ReasoningGymDataConfig, seed: int) -> Any:
    """The dataset object. Raises UserError for a missing package, an unknown name, and parameters the dataset refuses."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError("data=reasoning_gym needs the reasoning-gym package: pip install 'rlexp[gym]'") from error
    if config.dataset not in DATASETS:
        close = difflib.get_close_matches(config.dataset, DATASETS, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(DATASETS))}"
        raise UserError(f"data.dataset={config.dataset} is no dataset of reasoning-gym; {hint}")
    own = {"seed", "size"} & config.params.keys()
    if own:
        raise UserError(f"data.params may not set {' and '.join(sorted(own))}: use data.seed and data.size")
    try:
        return reasoning_gym.create_dataset(config.dataset, size=2**31, seed=seed, **config.params)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"data.params={config.params} is refused by reasoning-gym's {config.dataset}: {error}") from error


def _task(entry: dict[str, Any], config: ReasoningGymDataConfig) -> Task:
    question = entry["question"] + config.suffix
    return {
        "prompt": [{"role": "user", "content": question}] if config.conversational else question,
        "answer": entry["answer"],
        "entry": entry,
        "gym_dataset": {"name": config.dataset, "params": dict(config.params)},
    }
