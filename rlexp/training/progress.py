"""How far a run has come: counters that checkpoints keep and summary.json shows."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Progress:
    """Counters of a run, over all its lives."""

    step: int = 0
    """optimizer steps made"""
    version: int = 0
    """weight version: +1 at each publication to the generator"""
    batches: int = 0
    generated: int = 0
    """sampled tokens"""
    prompts: int = 0
    """prompt tokens of the rollouts"""
    forwarded: int = 0
    """positions passed through the policy in training"""
    trained: int = 0
    """loss terms trained on, each pass counted"""
    dropped: int = 0
    seconds: float = 0.0
    evaluated_step: int = -1
    """step of the last evaluation"""
    evaluation: dict[str, dict[str, float]] = field(default_factory=dict)
    """start, end and best: metrics of these evaluations, with their step"""
    best: list[list[float]] = field(default_factory=list)
    """[value, step] of evaluated checkpoints, best first"""
    metrics_bytes: int = 0
    """length of metrics.jsonl when this was saved: a resumed run cuts off what came after"""

    def state_dict(self) -> dict[str, Any]:
        """All counters as plain values."""
        return asdict(self)

    @property
    def tokens(self) -> dict[str, int]:
        """Token counters by their names in summary.json."""
        return {"generated": self.generated, "forwarded": self.forwarded, "trained": self.trained}


class Stopwatch:
    """Seconds by phase since the last reset."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.phases: dict[str, float] = {}

    def add(self, phase: str, since: float) -> None:
        """Count the time from `since` (perf_counter) to now for a phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - since

    def reset(self) -> dict[str, float]:
        """The phases and the whole time (key "step"), and start anew."""
        now = time.perf_counter()
        found = {**self.phases, "step": now - self.started}
        self.started, self.phases = now, {}
        return found
