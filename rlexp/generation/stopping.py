"""When a completion ends: EOS ids, stop ids, stop strings, token limit. One rule for every backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlexp.records.request import Sampling
from rlexp.records.turn import EOS, LENGTH, STOP

REASONS = ("", EOS, STOP, LENGTH)
"""finish reason of each code; 0: goes on"""
_EOS, _STOP, _LENGTH = 1, 2, 3

_CONTEXT_TOKENS = 4
"""Tokens decoded before those that can hold a stop string: some tokenizers drop the space in front of the first token they decode,
and a character can be spread over several tokens."""


class StopRules:
    """Decides which rows end with their newest token. Where several rules agree, EOS beats stop and stop beats length.

    limit: int64 [n], most tokens of each row.
    """

    def __init__(self, eos_ids: Sequence[int], sampling: Sampling, limit: Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
        self.eos_ids = torch.tensor(list(eos_ids), dtype=torch.int64, device=limit.device)
        self.stop_ids = torch.tensor([*sampling.stop_ids], dtype=torch.int64, device=limit.device)
        self.limit = limit
        self.strings = sampling.stop
        self.tokenizer = tokenizer
        self.window = max((len(text.encode()) for text in sampling.stop), default=0) + _CONTEXT_TOKENS

    def codes(self, row: Tensor, ids: Tensor, step: int, tail: Tensor | None) -> Tensor:
        """Index into REASONS for each row given, int8 [m].

        row: int64 [m], rows still sampled. ids: int64 [m], their newest tokens. tail: int64 [m, <= window], the last tokens,
        these included; needed with stop strings.
        """
        code = torch.where(self.limit[row] <= step + 1, _LENGTH, 0).to(torch.int8)
        if tail is not None:
            code[self._ends_in_string(tail)] = _STOP
        if len(self.stop_ids):
            code[torch.isin(ids, self.stop_ids)] = _STOP
        code[torch.isin(ids, self.eos_ids)] = _EOS
        return code

    def _ends_in_string(self, tail: Tensor) -> Tensor:
        """Whether a stop string stands in the decoded tail, special tokens included: bool [m].

        A token holds at least one byte, so a string that the newest token completes lies in the last `window` tokens. Only the
        completion is searched, never the prompt.
        """
        texts = self.tokenizer.batch_decode(tail.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return torch.tensor([any(string in text for string in self.strings) for text in texts], dtype=torch.bool, device=tail.device)
