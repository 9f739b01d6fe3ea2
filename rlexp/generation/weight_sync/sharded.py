"""Weights that ranks hold in parts, to an engine: they are gathered one after the other while they are sent, never all at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from rlexp.distributed.collectives import Collectives
from rlexp.generation.weight_sync import probe
from rlexp.generation.weight_sync.base import Adapter, Named
from rlexp.generation.weight_sync.fingerprint import Fingerprint
from rlexp.generation.weight_sync.push import WeightSync

T = TypeVar("T")
Opened = Callable[[str], AbstractContextManager[None]]
"""by the name of a policy: a context in which its module can be called (Strategy.opened)"""


class ShardedWeightSync(WeightSync):
    """Every rank walks through all tensors, since gathering one is an exchange; a rank that does not send drops them."""

    together = True

    def __init__(self, *arguments: Any, ranks: Collectives, opened: Opened, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ranks, self.opened = ranks, opened

    def _send(self, policy: str, tensors: Iterator[Named], version: int) -> None:
        def send() -> None:
            try:
                if self.sends:
                    super(ShardedWeightSync, self)._send(policy, tensors, version)
            finally:
                deque(tensors, maxlen=0)  # to the end also when the engine failed: the other ranks gather on

        self._on_all(send)

    def _send_adapter(self, policy: str, adapter: Adapter, version: int) -> None:
        self._on_all(lambda: super(ShardedWeightSync, self)._send_adapter(policy, adapter, version) if self.sends else None)

    def _checksums(self, policy: str) -> Sequence[Mapping[str, Fingerprint]]:
        told = self._on_all(lambda: super(ShardedWeightSync, self)._checksums(policy) if self.sends else None)
        return next(checksums for checksums in told if checksums is not None)

    def _logprobs(self, policy: str, ids: np.ndarray) -> np.ndarray:
        with self.opened(policy):
            return super()._logprobs(policy, ids)

    def difference(self, policy: str) -> float:
        """The largest on any rank."""

        def compare() -> float:
            if self.sends:
                return super(ShardedWeightSync, self).difference(policy)
            self._logprobs(policy, probe.probe_ids(self.policies[policy], self.generator.context))
            return 0.0

        return max(self._on_all(compare))

    def _on_all(self, work: Callable[[], T]) -> list[T]:
        """The results of all ranks. When it fails on one it fails on all, so that none goes on to an exchange alone."""
        found, own = None, None
        try:
            found = work()
        except Exception as error:
            own = error
        told = self.ranks.gather_objects((found, None if own is None else str(own)))
        if own is not None:
            raise own
        for rank, (_, problem) in enumerate(told):
            if problem is not None:
                raise RuntimeError(f"rank {rank} could not bring its engine up to date: {problem}")
        return [result for result, _ in told]
