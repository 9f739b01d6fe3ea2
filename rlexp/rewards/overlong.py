"""`reward=overlong`."""

from __future__ import annotations

from rlexp.config.errors import UserError
from rlexp.config.reward import OverlongRewardConfig


class Overlong:
    """Soft overlong penalty (DAPO, arXiv 2503.14476, eq. 13) of a completion of n tokens, with limit L and buffer C.

    0 for n <= L - C, (L - C - n) / C up to L, -1 beyond.
    """

    def __init__(self, config: OverlongRewardConfig) -> None:
        """Raises UserError when the buffer exceeds the limit, which would punish every completion."""
        if config.max_length is None:
            raise UserError("max_length is not set: give the length with full penalty, in tokens")
        if config.buffer > config.max_length:
            raise UserError(f"buffer={config.buffer} is larger than max_length={config.max_length}: make it smaller")
        self.limit, self.buffer = config.max_length, config.buffer

    def __call__(self, *, completion_ids: list[list[int]]) -> list[float]:
        return [self._penalty(len(ids)) for ids in completion_ids]

    def _penalty(self, length: int) -> float:
        free = self.limit - self.buffer
        if length <= free:
            return 0.0
        return max(-1.0, (free - length) / self.buffer)
