"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups without signal make room for others."""

from __future__ import annotations

from collections.abc import Callable

from rlexp.records.rollout import GenerationBatch, Group


def by_task(batch: GenerationBatch) -> list[list[Group]]:
    """The groups of each task together (one for each agent), in order."""
    tasks: dict[tuple, list[Group]] = {}
    for group in batch.groups:
        tasks.setdefault(group.key[:2], []).append(group)
    return list(tasks.values())


def refilled(first: GenerationBatch, more: Callable[[], GenerationBatch], most: int) -> GenerationBatch:
    """A batch of as many tasks as `first`, with a signal as far as at most `most` further batches give it.

    A task has a signal when the rewards of one of its groups differ. Those that have none are left out and replaced by tasks of further batches
    (`more`), in order; what is too much is left out too, because later it would be stale. If they do not suffice, the first tasks without
    signal fill the batch, so that its size never changes. Tokens, seconds and logged metrics are those of everything that was played. Counted:
    batch/refills, batch/dropped_groups (without signal) and batch/flat_groups (without signal, in the batch all the same).
    """
    played = [first]
    tasks = by_task(first)
    size = len(tasks)
    while len(_with_signal(tasks)) < size and len(played) <= most:
        played.append(more())
        tasks += by_task(played[-1])
    kept = _with_signal(tasks)[:size]
    flat = [groups for groups in tasks if all(group.flat for group in groups)]
    fillers = flat[: size - len(kept)]
    batch = _joined(played, [group for groups in kept + fillers for group in groups])
    numbers = {"refills": len(played) - 1, "dropped_groups": sum(map(len, flat[len(fillers) :])), "flat_groups": sum(map(len, fillers))}
    batch.metrics.update({f"batch/{name}": (float(value), 1.0) for name, value in numbers.items()})
    return batch


def _with_signal(tasks: list[list[Group]]) -> list[list[Group]]:
    return [groups for groups in tasks if not all(group.flat for group in groups)]


def _joined(played: list[GenerationBatch], groups: list[Group]) -> GenerationBatch:
    """The groups, with what was measured while all batches were played."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    columns = sorted({name for rollout in rollouts for name in rollout.extra})
    for rollout in rollouts:
        rollout.extra = {name: rollout.extra.get(name) for name in columns}
    metrics: dict[str, tuple[float, float]] = {}
    seconds: dict[str, float] = {}
    for batch in played:
        for name, (total, count) in batch.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = (before[0] + total, before[1] + count)
        for name, value in batch.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
    generated, prompts = (sum(getattr(batch, name) for batch in played) for name in ("generated_tokens", "prompt_tokens"))
    return GenerationBatch(groups, played[0].step_hint, metrics, seconds, generated, prompts)
