"""The error a user can fix: printed as one clear message without a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """Something wrong with the configuration, the data or a user's function. The message names the key and the fix."""


class PeerError(UserError):
    """The error of another rank, which ends this one too. rank: that rank."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


def listed(problems: list[str]) -> str:
    """One problem as it is, several as a numbered list."""
    if len(problems) == 1:
        return problems[0]
    return "\n".join([f"{len(problems)} problems:", *(f"  {number}. {text}" for number, text in enumerate(problems, start=1))])
