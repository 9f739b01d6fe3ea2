"""What a task must look like, and the fingerprint of a dataset's contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from rlexp.config.errors import UserError

RESERVED = frozenset({"prompts", "completions", "completion_ids", "prompt_texts", "trainer_state", "log_extra", "log_metric"})
"""Names of reward arguments that are not dataset columns."""


def check_task(task: dict[str, Any], where: str) -> None:
    """Raise UserError unless the task has a prompt (text, or messages with roles) and no column named like a reward argument.

    where: what the task is called in the message, e.g. "training task 3".
    """
    prompt = task.get("prompt")
    if prompt is None:
        raise UserError(f"{where} has no prompt (columns: {_names(task)}): set data.prompt_column, or data.prompt_template to make it from other columns")
    reserved = sorted(RESERVED & task.keys())
    if reserved:
        raise UserError(
            f"{where} has a column {reserved[0]!r}, which is the name of a reward argument: rename it, e.g. data.columns={{new_name: {reserved[0]}}}"
        )
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, list) or not prompt:
        raise UserError(f"{where}: the prompt must be text or a list of messages, not {_kind(prompt)} (data.prompt_column)")
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise UserError(f"{where}: each message of a prompt must be a dict with role and content, not {str(message)[:80]!r} (data.prompt_column)")


def columns_of(tasks: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The columns that rewards can ask for: all that occur in any task, without the prompt."""
    return frozenset(column for task in tasks for column in task) - {"prompt"}


class Fingerprint:
    """A hash of values that does not depend on the process, on dict order or on the order of a set."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, value: Any) -> None:
        """Add one value: any nesting of dicts, lists, tuples, sets, numbers, text and bytes."""
        self._hash.update(_canonical(value).encode())
        self._hash.update(b"\x1e")

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return self._hash.hexdigest()


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{_canonical(key)}:{_canonical(item)}" for key, item in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_canonical(item) for item in value) + "]"
    if isinstance(value, (set, frozenset)):
        return "<" + ",".join(sorted(_canonical(item) for item in value)) + ">"
    return repr(value)


def _names(task: dict[str, Any]) -> str:
    return ", ".join(sorted(map(str, task))) or "none"


def _kind(value: Any) -> str:
    return "an empty list" if value == [] else type(value).__name__
