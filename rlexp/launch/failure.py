"""What is said and kept when a run fails."""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass

from rlexp.config.errors import UserError


@dataclass(frozen=True)
class Failure:
    """A failure as status.json and the console show it."""

    reason: str
    """one line or more for people"""
    traceback: str
    """for train.log"""
    expected: bool
    """whether the reason says all a user needs, so that the console shows no traceback"""


def failure_of(error: BaseException) -> Failure:
    """Describe an exception. A full disk, like every UserError, gets a message that says what to do."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, UserError):
        return Failure(str(error), trace, True)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" (while writing {error.filename})" if error.filename else ""
        return Failure(f"no space left on the disk{where}: free some, then run the same command; it continues from the last checkpoint", trace, True)
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted; the same command continues from the last checkpoint", trace, True)
    return Failure(f"{type(error).__name__}: {error}", trace, False)
