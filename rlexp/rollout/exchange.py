"""What ranks tell each other about a generation batch: their rollouts, or why they have none."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rlexp.config.errors import PeerError, UserError
from rlexp.records.rollout import GenerationBatch, Group, Rollout

T = TypeVar("T")


class Exchange(Protocol):
    """The part of rlexp.distributed.collectives.Collectives that rollouts need."""

    rank: int
    world: int

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        ...


@dataclasses.dataclass
class Part:
    """What one rank played. Rollouts travel without their task, which every rank has."""

    rollouts: list[Rollout]
    metrics: dict[str, tuple[float, float]]
    seconds: dict[str, float]


@dataclasses.dataclass
class _Failure:
    message: str
    for_user: bool
    trace: str


def on_every_rank(collectives: Exchange, work: Callable[[], T]) -> list[T]:
    """Do the work of this rank and give every rank the results of all, in rank order.

    A rank that raises does not leave the others waiting: all raise, a rank that failed its own exception, the others a PeerError
    or RuntimeError that names the first failed rank.
    """
    own: Exception | None = None
    result: T | _Failure
    try:
        result = work()
    except Exception as error:
        own = error
        result = _Failure(str(error), isinstance(error, UserError), "".join(traceback.format_exception(error)))
    results: list[Any] = collectives.gather_objects(result)
    if own is not None:
        raise own
    for rank, other in enumerate(results):
        if isinstance(other, _Failure):
            raise PeerError(rank, other.message) if other.for_user else RuntimeError(f"rank {rank} failed while it made rollouts:\n{other.trace}")
    return results


def block(items: Sequence[T], rank: int, world: int) -> Sequence[T]:
    """The contiguous part of one rank; parts differ by at most one item."""
    return items[len(items) * rank // world : len(items) * (rank + 1) // world]


def without_tasks(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Shallow copies that hold no task."""
    return [dataclasses.replace(rollout, task={}) for rollout in rollouts]


def merged(parts: Sequence[Part], tasks: Mapping[tuple[int, int], dict[str, Any]]) -> GenerationBatch:
    """The whole batch out of the ranks' parts in rank order. tasks: by (epoch, index), which group keys begin with.

    Logged metrics add up as (sum, count), so a rank that logged nothing counts for nothing; a column that only some rollouts have
    is None for the others. A phase takes as long as its slowest rank.
    """
    rollouts = [rollout for part in parts for rollout in part.rollouts]
    columns = sorted({name for rollout in rollouts for name in rollout.extra})
    groups: dict[tuple, list[Rollout]] = {}
    for rollout in rollouts:
        rollout.task = tasks[rollout.group[:2]]
        rollout.extra = {name: rollout.extra.get(name) for name in columns}
        groups.setdefault(rollout.group, []).append(rollout)
    metrics: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (total, count) in part.metrics.items():
            old = metrics.get(name, (0.0, 0.0))
            metrics[name] = (old[0] + total, old[1] + count)
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    return GenerationBatch(
        groups=[Group(key, members) for key, members in groups.items()],
        metrics={name: metrics[name] for name in sorted(metrics)},
        seconds={name: max(part.seconds[name] for part in parts) for name in parts[0].seconds},
        generated_tokens=sum(len(turn.ids) for turn in turns),
        prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
    )
