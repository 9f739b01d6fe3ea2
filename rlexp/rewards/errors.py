"""The error of a reward that failed."""

from __future__ import annotations

import traceback

from rlexp.config.errors import UserError


class RewardError(UserError):
    """A reward raised, was late, or returned what it must not. `reward` is its name; the original exception is the cause."""

    def __init__(self, reward: str, message: str) -> None:
        super().__init__(message)
        self.reward = reward

    @property
    def details(self) -> str:
        """The traceback of the original exception; empty when there is none."""
        cause = self.__cause__
        return "" if cause is None else "".join(traceback.format_exception(cause))
