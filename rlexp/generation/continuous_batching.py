"""generation=continuous_batching: transformers' own engine on the trainer's weights (rows GRPO-184...188).

A row that ends makes room for the next at once. The weights are read live and stay in their dtype: nothing is copied or cast. Tokens are drawn from
torch's generator, seeded from the keys of the batch, by a thread whose batches depend on timing: runs are not reproduced bit for bit.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from rlexp.config.errors import UserError
from rlexp.config.generation import ContinuousBatchingGenerationConfig
from rlexp.generation.base import Policy, free_form
from rlexp.generation.batches import ModelGenerator, pad_id_of
from rlexp.generation.inference import causal_model, inference
from rlexp.records.request import Request
from rlexp.records.turn import EOS, LENGTH, STOP, Turn

_DEADLINE_S = 600.0
"""longest silence of the engine's thread"""


class ContinuousBatchingGenerator(ModelGenerator):
    """The third backend on the trainer's own modules, for long completions of very different lengths on a GPU."""

    provides: frozenset[str] = frozenset()

    def __init__(self, config: ContinuousBatchingGenerationConfig, *, policies: Mapping[str, Policy]) -> None:
        super().__init__(policies)
        self.config = config
        self.arguments = free_form(config.batching_kwargs, "generation.batching_kwargs")
        known = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
        for name in self.arguments:
            if name in ("return_logprobs", "seed"):
                raise UserError(f"generation.batching_kwargs.{name} cannot be used: rlexp sets it")
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise UserError(f"generation.batching_kwargs.{name} is no argument of transformers' ContinuousBatchingConfig{hint}")

    def fits(self, policy: Policy, rows: int, prompt: int, completion: int) -> bool:
        """Always: the engine's own scheduler decides what runs together."""
        return True

    def sample_batch(self, policy: Policy, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request."""
        causal, sampling = causal_model(policy.module), requests[0].sampling
        ends = sorted({*policy.eos_ids, *sampling.stop_ids}) or [-1]
        config = GenerationConfig(
            do_sample=sampling.temperature > 0,
            temperature=sampling.temperature or 1.0,
            top_k=sampling.top_k or None,
            top_p=sampling.top_p,
            eos_token_id=ends,
            pad_token_id=pad_id_of(policy),
            max_new_tokens=max(request.max_tokens for request in requests),
        )
        found: dict[int, Any] = {}
        with inference(policy.module), _plain_attention(causal), torch.random.fork_rng():
            batching = self._batching(causal, requests)
            with causal.continuous_batching_context_manager(generation_config=config, continuous_batching_config=batching, block=True, timeout=5) as manager:
                for place, request in enumerate(requests):
                    manager.add_request(request.ids.tolist(), str(place), request.max_tokens, eos_token_id=ends)
                while len(found) < len(requests):
                    output = manager.get_result(timeout=_DEADLINE_S)
                    if output is None or output.error is not None:
                        raise RuntimeError(f"transformers' continuous batching ended early: {'no answer' if output is None else output.error}")
                    if output.is_finished():
                        found[int(output.request_id)] = output
        return [self._turn(request, found[place], policy) for place, request in enumerate(requests)]

    def _batching(self, causal: Any, requests: Sequence[Request]) -> ContinuousBatchingConfig:
        given = {"max_memory_percent": self.config.max_memory_percent, **self.arguments}
        if causal.device.type == "cpu" and "num_blocks" not in given:  # there is no GPU memory to take a share of: as much as the wave can need
            page = given.get("page_size", ContinuousBatchingConfig.page_size)
            given["num_blocks"] = sum(math.ceil((len(request.ids) + request.max_tokens) / page) for request in requests) + 1
        return ContinuousBatchingConfig(return_logprobs=True, seed=requests[0].key % 2**63, drop_unsupported_processors=False, **given)

    def _turn(self, request: Request, output: Any, policy: Policy) -> Turn:
        ids = np.array(output.generated_tokens, np.int64)
        last = int(ids[-1])
        finish = EOS if last in policy.eos_ids else STOP if last in request.sampling.stop_ids else LENGTH
        return Turn(np.asarray(request.ids, np.int64), ids, np.array(output.logprobs, np.float32), finish, self.version)


@contextmanager
def _plain_attention(causal: Any) -> Iterator[None]:
    """The engine knows flash attention, sdpa and eager; whatever the training forward uses comes back afterwards."""
    own = causal.config._attn_implementation
    if "flash" not in own and own not in ("sdpa", "eager"):
        causal.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        causal.set_attn_implementation(own)
