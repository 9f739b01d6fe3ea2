"""Gradients are those of the value once every stop-gradient factor is held fixed, for every allowed combination."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loss_batches import CASES, LOSS_NAMES, micro_batches, objective, own_options, random_batch
from loss_product import KL, allowed, made_of, options_of
from torch.autograd.gradcheck import GradcheckError
from torch.overrides import TorchFunctionMode

from rlexp.losses.objective import PolicyObjective


class Frozen(TorchFunctionMode):
    """What is computed without gradient (detached, or under no_grad) is recorded in a first run and given back in later ones, as an input would be."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self.place: int | None = None
        """of the next value to give back; None: recording"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        switch = func is torch._C._set_grad_enabled
        if switch or (func is not torch.Tensor.detach and torch.is_grad_enabled()):
            return func(*args, **(kwargs or {}))
        if self.place is None:
            self.values.append(func(*args, **(kwargs or {})))
            return self.values[-1]
        self.place += 1
        return self.values[self.place - 1]


def gradcheck(run: PolicyObjective, seed: int, *, frozen: bool = True) -> bool:
    """torch's check by finite differences, in a random direction of all log-probs and entropies, away from corners (the noise sees to that)."""
    batch = random_batch(seed)
    freeze = Frozen()

    def loss(logp: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        (inputs,) = micro_batches(batch, run.config, logp, [list(range(6))], entropy)
        if not frozen:
            return run(inputs).loss
        with freeze:
            return run(inputs).loss

    leaves = batch.logp.clone().requires_grad_(), batch.entropy.clone().requires_grad_()
    loss(*leaves)

    def replayed(*leaves: torch.Tensor) -> torch.Tensor:
        freeze.place = 0
        return loss(*leaves)

    options: dict[str, Any] = {"check_undefined_grad": False, "check_batched_grad": False}
    return torch.autograd.gradcheck(replayed, leaves, eps=1e-6, atol=1e-7, rtol=1e-6, fast_mode=True, **options)


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_every_allowed_combination(name: str):
    for seed, cell in enumerate(allowed(name)):
        assert gradcheck(made_of(cell, seed), seed), cell


@pytest.mark.parametrize(("name", "level"), CASES)
@pytest.mark.parametrize("kl", KL)
def test_every_option(name: str, level: str, kl: dict[str, Any]):
    for seed, options in enumerate(options_of(name)):
        assert gradcheck(objective(name, **kl, **own_options(name, importance_sampling_level=level), **options), seed)


@pytest.mark.parametrize(("name", "level"), [("cispo", "token"), ("vespo", "own")])
def test_the_check_sees_a_factor_that_is_not_held_fixed(name: str, level: str):
    run = objective(name, **own_options(name, importance_sampling_level=level))
    assert gradcheck(run, 0)
    with pytest.raises(GradcheckError):
        gradcheck(run, 0, frozen=False)
