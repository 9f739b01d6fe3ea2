"""Live counts what is alive: each storage once, until it is freed, under its label."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlexp.planning.live import Live

KIB = 1024


def label(tensor: torch.Tensor) -> str:
    return "wide" if tensor.dim() == 2 else "flat"


def test_peak_of_what_is_alive() -> None:
    """On fake tensors, which hold no memory, and on real ones alike."""
    for fake in (True, False):
        with FakeTensorMode() if fake else torch.no_grad():
            given = torch.ones(1000)
            with Live(label, {}, [given]) as live:
                a = given * 2  # 4000 bytes; `given` was there before
                b = a + given
                assert (live.total, live.peak) == (8000, 8000)
                view = b[:10].view(2, 5)  # no storage of its own
                assert live.total == 8000
                del a
                c = torch.empty(3, 7)
                assert live.total == 4000 + 84 and live.peak == 8000
                b.mul_(2)
                assert live.total == 4084
                del b
                assert live.total == 4084  # held by its view
                del view
                assert live.total == 84 and live.at_peak == {"flat": 8000}
                live.restart()
                assert (live.peak, live.at_peak["wide"], live.at_peak["flat"]) == (84, 84, 0)
                del c
                assert live.total == 0 and live.peak == 84


def test_weights_decide_where_the_peak_is() -> None:
    with FakeTensorMode(), Live(label, {"flat": 0.25}, []) as live:
        flat = torch.empty(1000)
        del flat
        wide = torch.empty(10, 50)
        assert (live.peak, live.at_peak["wide"]) == (2000, 2000)
        del wide


def test_what_autograd_keeps_is_alive() -> None:
    """exp keeps its result, and the backward frees it."""
    with FakeTensorMode():
        weight = torch.ones(KIB, requires_grad=True)
        with Live(label, {}, [weight]) as live:
            loss = weight.exp().exp().sum()
            assert live.total == 2 * 4 * KIB + 4
            loss.backward()
            del loss
            assert live.total == 4 * KIB  # the gradient
