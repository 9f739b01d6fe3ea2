"""generation=native: our sampler in the trainer's process.

Each distinct prompt is forwarded once and its cache repeated for the rollouts of its group; rows that end leave the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlexp.config.generation import NativeGenerationConfig
from rlexp.generation.base import Done, Policy
from rlexp.generation.batches import ModelGenerator, Prompts, prompts_of
from rlexp.generation.cache import new_cache, select_rows
from rlexp.generation.inference import causal_model, inference
from rlexp.generation.ledger import Ledger
from rlexp.records.request import Request
from rlexp.records.turn import Turn

_LEAVE = 1 / 16
"""Share of ended rows at which the cache is compacted: the copy costs about half a step and saves this share of each later one."""


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
            _decode(_Rows(policy, prompts, ledger.width), ledger, leave)
        return ledger


class _Rows:
    """The rows that are forwarded, with their cache.

    number: int64 [m], the request of each row. logits: [m, V] for its next token.
    """

    def __init__(self, policy: Policy, prompts: Prompts, width: int) -> None:
        self.module: Any = policy.module
        self.context = policy.context
        causal = causal_model(self.module)
        # without logits_to_keep, which some architectures lack, the logits of all prompt tokens are computed and dropped
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(causal.forward).parameters else {}
        self.cache = new_cache(causal.config)
        self.mask = prompts.mask
        logits = self._forward(prompts.ids, prompts.position)
        select_rows(self.cache, prompts.of_row)
        self.number = torch.arange(len(prompts.of_row), device=prompts.ids.device)
        self.logits = logits[prompts.of_row]
        self.length = prompts.length[prompts.of_row]
        if self.mask is not None:
            self.prompt_width = prompts.ids.shape[1]
            self.full_mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), width)], 1)[prompts.of_row]

    def keep(self, chosen: Tensor) -> None:
        """Forward only the chosen rows (int64 places) from now on."""
        select_rows(self.cache, chosen)
        self.number, self.length = self.number[chosen], self.length[chosen]
        if self.mask is not None:
            self.full_mask = self.full_mask[chosen]

    def step(self, ids: Tensor, step: int) -> None:
        """Forward token `step` of each row."""
        if self.mask is not None:
            self.mask = self.full_mask[:, : self.prompt_width + step + 1]
        position = (self.length + step).clamp(max=self.context - 1)  # only rows that have ended would go beyond
        self.logits = self._forward(ids[:, None], position[:, None])

    def _forward(self, ids: Tensor, position: Tensor) -> Tensor:
        output = self.module(input_ids=ids, attention_mask=self.mask, position_ids=position, past_key_values=self.cache, use_cache=True, **self.options)
        return output.logits[:, -1]


def _decode(rows: _Rows, ledger: Ledger, leave: Leave | None) -> None:
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
            if left <= (1 - _LEAVE) * len(rows.number):
                rows.keep(alive.nonzero()[:, 0])
                alive, everyone = torch.ones(left, dtype=torch.bool, device=alive.device), True
        rows.step(ledger.ids[rows.number, step], step)
    raise RuntimeError("a row outlived its token limit")
