"""Ranks that sample or score with sharded weights: each forward is an exchange, so all ranks make the same ones, in the same order.

A rank that wants to forward a model says so first. If another rank wants an earlier model, it forwards that one along with it, with a
single token and for nothing; a rank that has done all it had to goes on like this until nobody wants anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

NOTHING = 2**31
"""what a rank wants that has nothing left to sample"""


class Lockstep:
    """A context around sampling and scoring.

    models: what ranks call, the same list on every rank, in the order in which each rank has use for them. along: what is forwarded along with each; by
    default the same.
    """

    def __init__(self, models: Sequence[nn.Module], along: Sequence[nn.Module] | None = None) -> None:
        self.models, self.along = models, along or models
        self._accompanying = False
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        for number, model in enumerate(self.models):
            # before the hook that gathers the model's weights, which is an exchange itself
            self._hooks.append(model.register_forward_pre_hook(lambda module, arguments, number=number: self._turn(number), prepend=True))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Until the last rank is done, also when this one failed: the others could not go on without it."""
        try:
            self._turn(NOTHING)
        finally:
            for hook in self._hooks:
                hook.remove()

    def _turn(self, wanted: int) -> None:
        """Returns when it is this rank's turn to do what it wants, or when no rank wants anything."""
        if self._accompanying:
            return
        while (first := self._first(wanted)) != wanted:
            self._accompany(first)

    def _first(self, wanted: int) -> int:
        """The first model that any rank wants to forward now."""
        first = torch.tensor(wanted)
        dist.all_reduce(first, dist.ReduceOp.MIN)
        return int(first)

    @torch.no_grad()
    def _accompany(self, number: int) -> None:
        model = self.along[number]
        self._accompanying = True
        try:
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=next(model.parameters()).device))
        finally:
            self._accompanying = False
