"""generation=native: our sampler in the trainer's process.

Each distinct prompt is forwarded once and its cache repeated for the rollouts of its group; rows that end leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from rlexp.config.generation import NativeGenerationConfig
from rlexp.generation.base import Done, Policy
from rlexp.generation.batches import ModelGenerator, prompts_of
from rlexp.generation.graphs import FixedRows
from rlexp.generation.inference import inference
from rlexp.generation.ledger import Ledger
from rlexp.generation.rows import Rows
from rlexp.records.request import Request
from rlexp.records.turn import Turn

Leave = Callable[[Ledger, list[int]], None]
"""is told the rows that have just ended"""


class NativeGenerator(ModelGenerator):
    """Equal waves give equal bits; the random numbers depend on request keys only."""

    def __init__(self, config: NativeGenerationConfig, *, policies: Mapping[str, Policy]) -> None:
        super().__init__(policies)
        self.config = config

    def fits(self, policy: Policy, rows: int, prompt: int, completion: int) -> bool:
        """Whether the cache of so many rows stays within generation.max_wave_tokens."""
        return rows * (prompt + completion) <= self.config.max_wave_tokens

    def sample_batch(self, policy: Policy, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request."""
        return self._sampled(policy, requests, None).turns(self.version)

    def stream_batch(self, policy: Policy, requests: Sequence[Request], done: Done) -> None:
        """The same turns, each handed over when its row leaves the batch."""

        def leave(ledger: Ledger, rows: list[int]) -> None:
            for row, turn in zip(rows, ledger.turns(self.version, rows), strict=True):
                done(row, turn)

        self._sampled(policy, requests, leave)

    def _sampled(self, policy: Policy, requests: Sequence[Request], leave: Leave | None) -> Ledger:
        prompts = prompts_of(requests, policy, distinct=True)
        ledger = Ledger(requests, policy, prompts.ids.device)
        with inference(policy.module):
            make = FixedRows if self.config.cuda_graphs else Rows
            _decode(make(policy, prompts, ledger.width), ledger, leave)
        return ledger


def _decode(rows: Rows, ledger: Ledger, leave: Leave | None) -> None:
    """Sample token after token until every row has ended."""
    alive = torch.ones_like(rows.number, dtype=torch.bool)
    everyone = True
    for step in range(ledger.width):
        number = rows.number if everyone else rows.number[alive]
        ledger.draw(rows.logits if everyone else rows.logits[alive], number, step)
        goes_on = ledger.end(number, step)
        left = int(goes_on.sum())
        if leave is not None and left < len(number):
            leave(ledger, number[~goes_on].tolist())
        if left == 0:
            return
        if left < len(rows.number):
            alive = alive.masked_scatter(alive, goes_on)
            everyone = False
            if left <= (1 - rows.leave) * len(rows.number):
                rows.keep(alive.nonzero()[:, 0])
                alive, everyone = torch.ones(left, dtype=torch.bool, device=alive.device), True
        rows.step(ledger.ids[rows.number, step], step)
    raise RuntimeError("a row outlived its token limit")
