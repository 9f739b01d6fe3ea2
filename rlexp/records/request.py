"""One sampling request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy (never for rollouts that are trained on)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    extra: tuple[tuple[str, object], ...] = ()
    """Further arguments of the backend (generation.generation_kwargs), sorted by name."""

    @property
    def greedy(self) -> Sampling:
        """The same with the most probable token each time."""
        return replace(self, temperature=0.0, top_p=1.0, top_k=0, min_p=None)

    @property
    def truncated(self) -> bool:
        """Whether the distribution is cut, so that candidate ids travel with the turn."""
        return self.top_p < 1.0 or self.top_k > 0 or bool(self.min_p)


@dataclass(frozen=True)
class Request:
    """Prompt token ids in, sampled ids out. `order` sorts the requests of a wave; `key` is the random key of this turn."""

    ids: np.ndarray
    """int64 [prompt length]"""
    key: int
    """64-bit random key; the draw of token t uses `uniforms(key, t)`"""
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    policy: str = "policy"
    order: tuple = ()
