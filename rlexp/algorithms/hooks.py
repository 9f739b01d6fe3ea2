"""Objects of the user that look at each batch: methods are called by name, those that are not there are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlexp.rewards.custom import named


class Hooks:
    """paths: FILE.py:NAME or MODULE:NAME each, an object or a class (which is made without arguments)."""

    def __init__(self, paths: Sequence[str], key: str) -> None:
        self.objects = [_made(named(path, f"{key}={path}")) for path in paths]

    def call(self, event: str, **payload: Any) -> None:
        """Call the method `event` of every object that has one with these keyword arguments."""
        for watcher in self.objects:
            method = getattr(watcher, event, None)
            if method is not None:
                method(**payload)


def _made(found: Any) -> Any:
    return found() if isinstance(found, type) else found
