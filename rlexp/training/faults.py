"""Fault points: RLEXP_FAULT=STEP:CALL:before|after kills the process there, so that tests can prove that nothing is lost.

STEP is the number of optimizer steps already made, CALL a call of the loop (next, samples, plan, score, advantages, backward,
reduce, optimizer, follow, after_step, publish, log, evaluate, checkpoint). RLEXP_FAULT_RANK limits it to one rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def fault_point(step: int, call: str, rank: int = 0) -> Iterator[None]:
    """Around one call of the loop; does nothing unless RLEXP_FAULT names it."""
    wanted = os.environ.get("RLEXP_FAULT")
    mine = wanted is not None and os.environ.get("RLEXP_FAULT_RANK", str(rank)) == str(rank)
    if mine and wanted == f"{step}:{call}:before":
        os.kill(os.getpid(), signal.SIGKILL)
    yield
    if mine and wanted == f"{step}:{call}:after":
        os.kill(os.getpid(), signal.SIGKILL)
