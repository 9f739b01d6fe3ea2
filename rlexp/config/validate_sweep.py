"""What can be wrong with the group `sweep` together with other groups."""

from __future__ import annotations

from collections.abc import Iterator

from rlexp.config.derived import evaluates
from rlexp.config.run import RunConfig


def problems(config: RunConfig) -> Iterator[str]:
    """A run that pauses needs a checkpoint to continue from; runs that are compared on their way need evaluations there."""
    sweep, every = config.sweep, config.evaluation.steps
    halving = sweep.method == "halving"
    asks = "sweep.method=halving" if halving else f"sweep.pause_at={sweep.pause_at}"
    if (halving or sweep.pause_at is not None) and config.checkpoint.name == "none":
        yield f"{asks} pauses runs by a checkpoint, and checkpoint=none saves none: set checkpoint=default"
    if not halving:
        return
    if not evaluates(config):
        yield f"{asks} compares runs by evaluations, and there are none: set evaluation=default and data.eval_size"
    elif every is None:
        yield f"{asks} compares runs by evaluations on their way: set evaluation.steps, of which each rung is a multiple"
    elif sweep.pause_at is not None and sweep.pause_at % every:
        yield f"sweep.pause_at={sweep.pause_at} is no multiple of evaluation.steps={every}: runs are compared by the evaluation at that step"
