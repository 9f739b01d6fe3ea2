"""Weights to a generator that holds a copy of its own: what it takes, what it can be asked, how a sync fails (DESIGN, contracts between rooms).

`WeightSync.push` (rlexp.generation.weight_sync.push) is the only place that streams, probes and counts the version. A target does the rest of
one transfer: pause, load layer by layer, refresh a tied head, reset the prefix cache, resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlexp.generation.base import Generator

RESUMED, PAUSED = "resumed", "paused"
"""What a failed sync left behind: an engine that samples on with whatever it has, or one that waits."""

Named = tuple[str, Tensor]
"""a tensor with its name in the Hugging Face checkpoint of the policy"""


class SyncError(RuntimeError):
    """Weights did not arrive, or not as they were sent. engine: RESUMED or PAUSED; the message says it."""

    def __init__(self, message: str, *, engine: str) -> None:
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

    shared: bool
    """whether all ranks of the trainer use the same engine, so that rank 0 alone sends"""
    has_base: bool
    """whether it started with the policies' weights, so that an adapter alone is enough from the first sync on"""

    def receive(self, policy: str, tensors: Iterator[Named], version: int) -> None:
        """Load these tensors, each read once, in the order given; those not sent stay. Raises SyncError."""
        ...

    def receive_adapter(self, policy: str, adapter: Adapter, version: int) -> None:
        """Serve the policy with this adapter on the weights received before. Raises SyncError; UserError when the engine serves no adapters."""
        ...

    def version(self) -> int:
        """The version the engine says it has, -1 before the first sync (several servers: the lowest)."""
        ...

    def checksums(self, policy: str) -> Sequence[Mapping[str, tuple[float, float]]]:
        """For each copy of the weights: `fingerprint.of` each tensor as the engine computes with it, by its Hugging Face name; those it cannot tell are
        left out."""
        ...


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass
class TrainerSide:
    """What a generator with an engine is told about the trainer it works for. Constructor: `(config, *, policies, trainer: TrainerSide)`."""

    dtype: torch.dtype
    """what the trainer computes log-probs in: its autocast, or the weights' own"""
    rank: int = 0
    world: int = 1
    folder: Path | None = None
    """of the run, for logs; None in an evaluation by hand"""
    gather: Callable[[Any], list[Any]] = _alone
    """gives every rank the values of all, in rank order (Collectives.gather_objects)"""


class EngineGenerator(Generator, Protocol):
    """A generator that samples from its own copy of the weights."""

    weights: WeightTarget
    dtype: torch.dtype
    """what the engine computes in"""
    context: int
    """longest sequence of the engine"""
    copies: int
    """of the weights, in engines of their own: as many sequences scored at once are scored by one each"""

    def score(self, policy: str, ids: Sequence[np.ndarray], top_k: int | None = None) -> list[Score]:
        """Log-probs of each sequence under the engine's weights, at temperature 1 and without truncation. Raises BadPrompt when one is too long."""
        ...

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""
        ...
