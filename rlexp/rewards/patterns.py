"""Regular expressions given by the user that cut an answer out of a text."""

from __future__ import annotations

import re

from rlexp.config.errors import UserError


def answer_pattern(pattern: str | None) -> re.Pattern[str] | None:
    """The compiled pattern; raises UserError for one that cannot be read or has no group."""
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise UserError(f"pattern={pattern!r} is no regular expression: {error}") from error
    if not compiled.groups:
        raise UserError(f"pattern={pattern!r} needs a group in round brackets: the answer")
    return compiled
