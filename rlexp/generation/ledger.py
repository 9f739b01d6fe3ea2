"""What a batch of requests has sampled so far, and the turns it becomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlexp.generation.base import Policy
from rlexp.generation.sampling import Draw, draw
from rlexp.generation.stopping import REASONS, StopRules
from rlexp.records.keys import uniforms
from rlexp.records.request import Request
from rlexp.records.turn import Candidates, Turn


class Ledger:
    """Draws, records and ends the rows of one batch; both local backends write into it.

    requests: n requests of one policy with one sampling, their max_tokens clipped to the context.
    """

    def __init__(self, requests: Sequence[Request], policy: Policy, device: torch.device) -> None:
        self.requests = requests
        self.sampling = requests[0].sampling
        limit = torch.tensor([request.max_tokens for request in requests], device=device)
        self.width = int(limit.max())
        self.rules = StopRules(policy.eos_ids, self.sampling, limit, policy.tokenizer)
        key = np.array([request.key for request in requests], dtype=np.uint64)
        self.uniform = torch.from_numpy(uniforms(key[:, None], np.arange(self.width))).to(device)
        self.ids = torch.zeros(len(requests), self.width, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(len(requests), self.width, dtype=torch.float32, device=device)
        self.length = torch.zeros(len(requests), dtype=torch.int64, device=device)
        self.code = torch.zeros(len(requests), dtype=torch.int8, device=device)
        self.seen: Tensor | None = None
        self.kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        """candidates as they come: row, step and id of each"""

    def draw(self, logits: Tensor, row: Tensor, step: int) -> Tensor:
        """Draw token `step` of the rows given from their logits [m, V], and record it: ids, int64 [m]."""
        if self.sampling.repetition_penalty != 1.0 and self.seen is None:
            self.seen = self._prompt_tokens(logits.shape[-1], logits.device)
        drawn: Draw = draw(logits, self.sampling, self.uniform[row, step], None if self.seen is None else self.seen[row])
        self.ids[row, step] = drawn.ids
        self.logprobs[row, step] = drawn.logprobs.to(torch.float32)
        if self.seen is not None:
            self.seen[row, drawn.ids] = True
        if drawn.kept is not None:
            place, token = drawn.kept.nonzero(as_tuple=True)
            self.kept.append((row[place].cpu().numpy(), np.full(len(token), step), token.cpu().numpy()))
        return drawn.ids

    def end(self, row: Tensor, step: int) -> Tensor:
        """Note the rows that end with token `step`: bool [m], True for those that go on."""
        tail = self.ids[row, max(0, step + 1 - self.rules.window) : step + 1] if self.rules.strings else None
        code = self.rules.codes(row, self.ids[row, step], step, tail)
        self.code[row] = code
        self.length[row] = step + 1
        return code == 0

    def turns(self, version: int, rows: Sequence[int] | None = None) -> list[Turn]:
        """The turns of these rows, which have ended, or of all, in the order of the requests. Ask for each row once: its candidates are given away."""
        rows = range(len(self.requests)) if rows is None else rows
        where = torch.tensor(list(rows), device=self.ids.device)
        ids, logprobs = self.ids[where].cpu().numpy(), self.logprobs[where].cpu().numpy()
        length, code = self.length[where].tolist(), self.code[where].tolist()
        kept = self._candidates(rows, length)
        prompts = [np.asarray(self.requests[row].ids, dtype=np.int64) for row in rows]
        return [
            Turn(prompt, ids[i, : length[i]].copy(), logprobs[i, : length[i]].copy(), REASONS[code[i]], version, kept[i]) for i, prompt in enumerate(prompts)
        ]

    def _prompt_tokens(self, vocabulary: int, device: torch.device) -> Tensor:
        seen = torch.zeros(len(self.requests), vocabulary, dtype=torch.bool, device=device)
        for i, request in enumerate(self.requests):
            seen[i, torch.from_numpy(np.asarray(request.ids, dtype=np.int64)).to(device)] = True
        return seen

    def _candidates(self, rows: Sequence[int], length: list[int]) -> list[Candidates | None]:
        if not self.kept:
            return [None] * len(rows)
        owners = np.concatenate([row for row, _, _ in self.kept])
        steps = np.concatenate([step for _, step, _ in self.kept])
        tokens = np.concatenate([token for _, _, token in self.kept])
        wanted = np.isin(owners, rows)
        self.kept = [(owners[~wanted], steps[~wanted], tokens[~wanted])]
        owners, steps, tokens = owners[wanted], steps[wanted], tokens[wanted]
        order = np.argsort(owners, kind="stable")  # steps stay in order inside each row
        owners = owners[order]
        found: list[Candidates | None] = []
        for row, n in zip(rows, length, strict=True):
            first, last = np.searchsorted(owners, [row, row + 1])
            mine = order[first:last]
            counts = np.bincount(steps[mine], minlength=n)[:n]
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            found.append(Candidates(tokens[mine][: offsets[-1]].astype(np.int64), offsets))
        return found
