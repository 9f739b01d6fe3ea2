"""Bytes of the tensors that are alive, and their peak, while a computation runs on fake tensors (shapes without numbers)."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary


class Live(TorchDispatchMode):
    """Counts every storage that an operator makes, until it is freed, under the label it is given then.

    label: a new tensor -> what it is. weight: by label, the share of its bytes that counts (sharded gradients: 1 / ranks; absent: 1).
    before: tensors that were there already and do not count.
    """

    def __init__(self, label: Callable[[Tensor], str], weight: Mapping[str, float], before: Iterable[Tensor]) -> None:
        super().__init__()
        self._label, self._weight = label, weight
        self._known = WeakIdKeyDictionary()
        for tensor in before:
            self._known[tensor.untyped_storage()] = None
        self.now: Counter[str] = Counter()
        """bytes by label"""
        self.total = self.peak = 0.0
        """weighted bytes, now and at most"""
        self.at_peak: dict[str, int] = {}
        """bytes by label at the peak"""

    def restart(self) -> None:
        """Forget the peak so far."""
        self.peak, self.at_peak = self.total, dict(self.now)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and look at what it gives."""
        result = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._see, result)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        label, size = self._label(tensor), storage.nbytes()
        self._known[storage] = weakref.ref(storage, functools.partial(self._freed, label, size))
        self.now[label] += size
        self.total += size * self._weight.get(label, 1.0)
        if self.total > self.peak:
            self.restart()

    def _freed(self, label: str, size: int, _: Any) -> None:
        self.now[label] -= size
        self.total -= size * self._weight.get(label, 1.0)
