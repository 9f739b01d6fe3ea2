"""Waves of requests to batches that one forward can hold, for the backends that run a model of this process."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlexp.generation.base import BadPrompt, Done, LocalGenerator, Policy
from rlexp.records.request import Request
from rlexp.records.turn import Turn


class ModelGenerator(LocalGenerator):
    """Samples from the trainer's own modules, weights read live. policies: by the name that requests give."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        super().__init__()
        self.policies = policies

    @abstractmethod
    def fits(self, policy: Policy, rows: int, prompt: int, completion: int) -> bool:
        """Whether so many rows may run together, with a longest prompt and a longest completion of so many tokens."""

    @abstractmethod
    def sample_batch(self, policy: Policy, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request, in order; all have the policy and the same sampling."""

    def stream_batch(self, policy: Policy, requests: Sequence[Request], done: Done) -> None:
        """The same turns, handed to `done` as soon as they are complete."""
        for row, turn in enumerate(self.sample_batch(policy, requests)):
            done(row, turn)

    def check(self, request: Request) -> None:
        """Raise BadPrompt for a prompt without tokens, or one that fills the context."""
        length, context = len(request.ids), self.policies[request.policy].context
        if length == 0:
            raise BadPrompt("the prompt has no tokens; give it some text")
        if length >= context:
            fix = "set data.overlong_prompt=drop or cut_left, or choose a model with a longer context"
            raise BadPrompt(f"the prompt has {length} tokens and the model's context is {context}, which leaves none to sample; {fix}")

    def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request, in the order given. Batches are made by length and `Request.order`, whoever asked first."""
        turns: dict[int, Turn] = {}
        for places, policy, batch in self._clipped_batches(requests):
            turns.update(zip(places, self.sample_batch(policy, batch), strict=True))
        return [turns[place] for place in range(len(requests))]

    def stream_wave(self, requests: Sequence[Request], done: Done) -> None:
        """The same turns from the same batches, each handed over when its batch, or its row of it, ends."""
        device = next(next(iter(self.policies.values())).module.parameters()).device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # each thread has a current device of its own
        for places, policy, batch in self._clipped_batches(requests):
            self.stream_batch(policy, batch, lambda row, turn, places=places: done(places[row], turn))  # type: ignore[misc]

    def _clipped_batches(self, requests: Sequence[Request]) -> list[tuple[list[int], Policy, list[Request]]]:
        """Places, policy and clipped requests of each batch."""
        clipped = [self._clip(request) for request in requests]
        return [(places, self.policies[clipped[places[0]].policy], [clipped[place] for place in places]) for places in self._batches(clipped)]

    def _clip(self, request: Request) -> Request:
        """The request with what the context leaves of its max_tokens."""
        self.check(request)
        room = self.policies[request.policy].context - len(request.ids)
        return request if request.max_tokens <= room else dataclasses.replace(request, max_tokens=room)

    def _batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Places of the requests of each batch: prompts of like length together, one policy and sampling each, as many as fit."""
        places = sorted(range(len(requests)), key=lambda place: (len(requests[place].ids), requests[place].order, requests[place].key))
        kinds: list[list[int]] = []
        for place in places:
            request = requests[place]
            kind = next((kind for kind in kinds if (requests[kind[0]].policy, requests[kind[0]].sampling) == (request.policy, request.sampling)), None)
            if kind is None:
                kinds.append([place])
            else:
                kind.append(place)
        return [batch for kind in kinds for batch in self._cut(requests, kind)]

    def _cut(self, requests: Sequence[Request], places: list[int]) -> list[list[int]]:
        policy = self.policies[requests[places[0]].policy]
        batches: list[list[int]] = []
        prompt = completion = 0
        for place in places:
            request = requests[place]
            prompt, completion = max(prompt, len(request.ids)), max(completion, request.max_tokens)
            if not batches or not self.fits(policy, len(batches[-1]) + 1, prompt, completion):
                batches.append([])
                prompt, completion = len(request.ids), request.max_tokens
            batches[-1].append(place)
        return batches


@dataclasses.dataclass
class Prompts:
    """The distinct prompts of a batch, padded on the left."""

    ids: Tensor
    """int64 [u, p]"""
    mask: Tensor | None
    """int64 [u, p], 0 at padding; None when all are equally long, which lets attention run without a mask"""
    length: Tensor
    """int64 [u]"""
    of_row: Tensor
    """int64 [n]: the prompt of each request"""

    @property
    def position(self) -> Tensor:
        """Position ids, int64 [u, p]; 0 at padding."""
        width = self.ids.shape[1]
        return (torch.arange(width, device=self.ids.device) - (width - self.length[:, None])).clamp(min=0)


def pad_id_of(policy: Policy) -> int:
    """Any id will do for padding, since it is masked: the tokenizer's, else 0."""
    pad = policy.tokenizer.pad_token_id
    return pad if isinstance(pad, int) else 0


def prompts_of(requests: Sequence[Request], policy: Policy, distinct: bool) -> Prompts:
    """The prompts of the requests; distinct: each different one once, in order of first appearance."""
    numbers: dict[object, int] = {}
    of_row = [numbers.setdefault(np.asarray(request.ids, np.int64).tobytes() if distinct else i, len(numbers)) for i, request in enumerate(requests)]
    width = max(len(request.ids) for request in requests)
    device = next(policy.module.parameters()).device
    ids = np.full((len(numbers), width), pad_id_of(policy), np.int64)
    length = np.zeros(len(numbers), np.int64)
    for number, request in zip(of_row, requests, strict=True):
        length[number] = len(request.ids)
        ids[number, width - len(request.ids) :] = request.ids
    mask = (np.arange(width) >= width - length[:, None]).astype(np.int64)
    return Prompts(
        torch.from_numpy(ids).to(device),
        None if mask.all() else torch.from_numpy(mask).to(device),
        torch.from_numpy(length).to(device),
        torch.tensor(of_row, device=device),
    )
