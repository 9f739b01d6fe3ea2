"""What makes two configs the same run: everything that changes its results, but not its length, name or watchers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rlexp.config.fields import walk
from rlexp.config.run import RunConfig

LENGTH = ("trainer.max_steps", "trainer.epochs")
"""How long to train: a larger value continues a run"""

_LEFT_OUT = ("run.name", "run.experiment", "run.preset", "run.resume", "run.dry", "trainer.threads", *LENGTH)
"""The seed, start_from and deterministic stay in although they stand under `run`: with another seed it is not the same run.
The number of threads is out because `null` means as many as the machine has; a change is reported when the run continues."""
_SECTIONS_LEFT_OUT = ("tracker.", "sweep.", "cluster.", "strategy.")
"""How many processes there are and what each holds changes results by rounding only; a checkpoint of another number says so when it is continued"""


def identity(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value of everything that counts."""
    values = {key: value for key, _, value in walk(config)}
    return {key: value for key, value in values.items() if key not in _LEFT_OUT and not key.startswith(_SECTIONS_LEFT_OUT)}


def fingerprint(config: RunConfig) -> str:
    """A hash of the identity, equal for equal runs."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:16]


def differing(old: RunConfig, new: RunConfig) -> list[str]:
    """`key: old -> new` for each key in which two configs are not the same run."""
    before, after = identity(old), identity(new)
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return [f"{key}: {before.get(key, 'not set')} -> {after.get(key, 'not set')}" for key in keys]


def wants_more(old: RunConfig, new: RunConfig, summary: Mapping[str, Any] | None) -> bool:
    """Whether a finished run gets further steps: the new length is larger than what it was trained with.

    Number of steps against epochs can only be compared once the data are loaded; then the trainer decides, which ends at once if it is done.
    """
    before, after = old.trainer, new.trainer
    if (before.max_steps, before.epochs) == (after.max_steps, after.epochs):
        return False
    if after.max_steps is None:
        return before.max_steps is not None or after.epochs > before.epochs
    done = before.max_steps if before.max_steps is not None else int((summary or {}).get("steps", 0))
    return after.max_steps > done
