"""Brings an engine's copy of the weights up to date: the only place that streams, probes and counts the version (rows GRPO-195, ASYNC A17)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from rlexp.config.vllm import EngineGenerationConfig
from rlexp.generation.base import Policy
from rlexp.generation.weight_sync import probe
from rlexp.generation.weight_sync.base import RESUMED, Adapter, EngineGenerator, Named, SyncError
from rlexp.generation.weight_sync.fingerprint import Fingerprint
from rlexp.generation.weight_sync.tensors import PolicyTensors

log = logging.getLogger(__name__)


class Sleeper(Protocol):
    """A target whose engine can give its memory back between rollouts."""

    def sleep(self, level: int) -> None:
        """Until the next `receive` or `wake`."""
        ...

    def wake(self) -> None:
        """With the weights it had; does nothing when it is awake."""
        ...


class WeightSync:
    """Weights of the trainer's policies to the engine of a generator.

    The trainer announces versions; the weights go when the next rollouts are sampled, so that several steps on one batch cost one sync. sends: whether
    this rank is one that sends. autocast: dtype of the trainer's forward where it is not that of the weights.
    """

    together = False
    """whether all ranks take part, also those that do not send"""

    def __init__(
        self,
        config: EngineGenerationConfig,
        generator: EngineGenerator,
        policies: Mapping[str, Policy],
        *,
        autocast: torch.dtype | None = None,
        sends: bool = True,
    ) -> None:
        self.config, self.generator, self.policies = config, generator, policies
        self.autocast, self.sends = autocast, sends
        self.tensors = {name: PolicyTensors(policy.module) for name, policy in policies.items()}
        self.adapter_only = config.sync_lora == "adapter"
        self.announced = 0
        self.pushed = -1
        weights: Any = generator.weights
        self.sleeper: Sleeper | None = weights if hasattr(weights, "sleep") else None
        self.base_sent = generator.weights.has_base
        self.verified = False

    @property
    def stale(self) -> bool:
        """Whether the engine's weights are not the announced ones."""
        return self.pushed != self.announced

    def announce(self, version: int) -> None:
        """The trainer's weights have changed, or may have: they are sent before the next sampling even if the number is the same."""
        self.announced, self.pushed = version, -1

    def rest(self) -> None:
        """The rollouts are there: the engine may sleep until the next ones (generation.sleep_level)."""
        level = getattr(self.config, "sleep_level", 0)
        if level and self.sleeper is not None:
            self.sleeper.sleep(level)
        if level == 2:
            self.lost()

    def lost(self) -> None:
        """The engine has no weights any more, frozen ones neither: the next push sends everything, unless it started with them again."""
        self.base_sent, self.pushed, self.verified = self.generator.weights.has_base, -1, False

    def bring(self) -> float:
        """Send the weights if the engine has others. Returns the seconds it took. Raises SyncError."""
        began = time.perf_counter()
        if self.stale:
            if self.sends or self.together:
                self.push(self.announced)
            self.pushed = self.announced
            self.generator.set_version(self.announced)
        elif self.sleeper is not None:
            self.sleeper.wake()
        return time.perf_counter() - began

    def push(self, version: int) -> None:
        """Stream the weights of every policy, compare, and check the version the engine says it has. Raises SyncError."""
        for name, tensors in self.tensors.items():
            if not self.base_sent or not self.adapter_only:
                self._send(name, tensors.stream(everything=not self.base_sent), version)
            if self.adapter_only:
                self._send_adapter(name, tensors.adapter(), version)
        self.base_sent = True
        if self.config.verify_sync == "always" or (self.config.verify_sync == "first" and not self.verified):
            for name in self.policies:
                self._verify(name)
            self.verified = True
        if self.sends and (has := self.generator.weights.version()) != version:
            raise SyncError(f"weight version {version} was sent, and the engine says it has {has}", engine=RESUMED)

    def _send(self, policy: str, tensors: Iterator[Named], version: int) -> None:
        self.generator.weights.receive(policy, tensors, version)

    def _send_adapter(self, policy: str, adapter: Adapter, version: int) -> None:
        self.generator.weights.receive_adapter(policy, adapter, version)

    def _checksums(self, policy: str) -> Sequence[Mapping[str, Fingerprint]]:
        return self.generator.weights.checksums(policy)

    def difference(self, policy: str) -> float:
        """Largest difference between the trainer's log-probs of the probe's tokens and those of any copy of the weights."""
        ids = probe.probe_ids(self.policies[policy], self.generator.context)
        mine = self._logprobs(policy, ids)
        theirs = self.generator.score(policy, [ids] * self.generator.copies)
        gap = np.abs(np.stack([score.logprobs for score in theirs]) - mine)
        return float("inf") if np.isnan(gap).any() else float(gap.max())

    def _logprobs(self, policy: str, ids: np.ndarray) -> np.ndarray:
        return probe.trainer_logprobs(self.policies[policy], ids, self.autocast)

    def _verify(self, policy: str) -> None:
        found, allowed = self.difference(policy), self.config.sync_tolerance or probe.TOLERANCE[str(self.generator.dtype).removeprefix("torch.")]
        log.info("weight sync: the engine's log-probs differ from the trainer's by at most %.2g (allowed: %g)", found, allowed)
        if found <= allowed:
            return
        engine = [] if self.adapter_only else self._checksums(policy)
        worst = probe.worst_tensors(self.tensors[policy], engine, self.generator.dtype)
        if worst:
            named = f"tensors that differ: {', '.join(worst)}"
        else:
            named = "no tensor differs, so the engine computes with them in another way" if any(engine) else "the engine cannot tell which tensors differ"
        raise SyncError(
            f"after a weight sync the engine's log-probs of {policy} differ from the trainer's by {found:.3g}, and {allowed:g} is allowed "
            f"(generation.sync_tolerance); {named}. generation.verify_sync=never skips the comparison",
            engine=RESUMED,
        )
