"""Weights to a generator that holds a copy of its own: what it takes, what it can be asked, how a sync fails (DESIGN, contracts between rooms).

`WeightSync.push` (rlexp.generation.weight_sync.push) is the only place that streams, probes and counts the version. A target does the rest of
one transfer: pause, load layer by layer, refresh a tied head, reset the prefix cache, resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from rlexp.generation.base import Generator

if TYPE_CHECKING:
    from torch import Tensor

RESUMED, PAUSED = "resumed", "paused"
"""What a failed sync left behind: an engine that samples on with whatever it has, or one that waits."""

Named = tuple[str, "Tensor"]
"""a tensor with its name in the Hugging Face checkpoint of the policy"""


class SyncError(RuntimeError):
    """Weights did not arrive, or not as they were sent. engine: RESUMED or PAUSED; the message says it."""

    def __init__(self, message: str, *, engine: Literal["resumed", "paused"]) -> None:
        self.engine = engine
        super().__init__(f"{message} (the engine is {engine})")


@dataclass
class Adapter:
    """A LoRA adapter alone."""

    settings: Mapping[str, Any]
    """adapter_config.json of peft"""
    tensors: Mapping[str, Tensor]
    """by the names of adapter_model.safetensors"""


@dataclass
class Score:
    """Log-probs of given ids, each after the ones before it; the first has none."""

    logprobs: np.ndarray
    """float32 [n - 1]"""
    top_ids: np.ndarray | None = None
    """int64 [n - 1, k], the most probable first; None without top_k"""
    top_logprobs: np.ndarray | None = None
    """float32 [n - 1, k]"""


class WeightTarget(Protocol):
    """Where weights go: an engine in this process, or one or more servers. A call returns when they sample with the new weights."""

    def receive(self, policy: str, tensors: Iterator[Named], version: int) -> None:
        """Load these tensors, each read once, in the order given; those not sent stay. Raises SyncError."""
        ...

    def receive_adapter(self, policy: str, adapter: Adapter, version: int) -> None:
        """Serve the policy with this adapter on the weights received before. Raises SyncError; UserError when the engine serves no adapters."""
        ...

    def version(self) -> int:
        """The version the engine says it has, -1 before the first sync (several servers: the lowest)."""
        ...

    def checksums(self, policy: str) -> Mapping[str, tuple[float, float]]:
        """(sum, sum of squares) in float64 of each tensor the engine holds, by the engine's names; {} when it cannot tell. Adapters count as theirs."""
        ...


class EngineGenerator(Generator, Protocol):
    """A generator that samples from its own copy of the weights."""

    weights: WeightTarget

    def score(self, policy: str, ids: Sequence[np.ndarray], top_k: int | None = None) -> list[Score]:
        """Log-probs of each sequence under the engine's weights, at temperature 1 and without truncation. Raises BadPrompt when one is too long."""
        ...

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""
        ...
