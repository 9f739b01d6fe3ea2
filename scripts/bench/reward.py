"""The reward of the benchmark: cheap, the same on both sides, and never equal in a whole group, so that no group is skipped."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any


def spread(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """A number in [0, 1) for each completion, from a checksum of its token ids."""
    return [zlib.crc32(b"".join(int(token).to_bytes(4, "little") for token in ids)) / 2**32 for ids in completion_ids]
