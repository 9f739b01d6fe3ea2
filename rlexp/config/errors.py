"""The error a user can fix: printed as one clear message without a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """Something wrong with the configuration, the data or a user's function. The message names the key and the fix."""
