"""generation=vllm_server: turns from one or more vLLM servers over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from rlexp.config.errors import UserError
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.base import BadPrompt, Policy, sampling_from
from rlexp.generation.vllm import sampling
from rlexp.generation.vllm_server.client import Client
from rlexp.generation.vllm_server.fleet import Fleet
from rlexp.generation.vllm_server.target import adapter_name
from rlexp.generation.vllm_server.wire import Aborted, bundle_key, completion_body, score_body, score_of, turns_of
from rlexp.generation.weight_sync.base import Score, TrainerSide, WeightTarget
from rlexp.records.request import Request
from rlexp.records.turn import Turn

ARGUMENTS = (
    *("frequency_penalty", "presence_penalty", "logit_bias", "length_penalty", "min_tokens", "allowed_token_ids", "bad_words", "truncate_prompt_tokens"),
    *("repetition_detection", "thinking_token_budget", "vllm_xargs", "priority", "spaces_between_special_tokens"),
)
"""what generation_kwargs may hold: fields of vLLM's completion request that rlexp does not set"""

PAUSE = 0.5
"""seconds before a text that was given up is sent again"""


class VLLMServerGenerator:
    """Sends each request at once; those that rollouts of one group make in the same moment travel as one call with n completions.

    policies: by the name that requests give; one, because a server holds one model. Rank 0 of the trainer starts the servers, or finds and checks
    them. Raises UserError on every rank.
    """

    provides = frozenset({"candidates"})

    def __init__(self, config: VLLMServerGenerationConfig, *, policies: Mapping[str, Policy], trainer: TrainerSide) -> None:
        if len(policies) > 1:
            raise UserError(f"generation=vllm_server serves one model, and {', '.join(policies)} are trained: set generation=native or generation=vllm")
        self.config, self.policies, self.trainer = config, policies, trainer
        self.version = 0
        self._waiting: dict[Hashable, list[tuple[Request, asyncio.Future[Turn]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._counted_restarts = self._counted_retries = 0
        sampling.check_arguments([name for name, _ in sampling_from(config).extra], ARGUMENTS)
        self.fleet = Fleet(config, next(iter(policies.values())), trainer)
        self.fleet.open()
        self._use_fleet()

    def set_version(self, version: int) -> None:
        """Told after each weight sync."""
        self.version = version

    # sampling

    def check(self, request: Request) -> None:
        """Raise BadPrompt for a request the context leaves no room for."""
        length = len(request.ids)
        if length == 0:
            raise BadPrompt("the prompt has no tokens; give it some text")
        if length >= self.context:
            fix = "set data.overlong_prompt=drop or cut_left, or raise generation.max_model_length (--max-model-len of the server)"
            raise BadPrompt(f"the prompt has {length} tokens and the server's context is {self.context}, which leaves none to sample; {fix}")

    async def sample(self, request: Request) -> Turn:
        """One turn. Raises BadPrompt, ServerLost."""
        self.check(request)
        room = self.context - len(request.ids)
        request = request if request.max_tokens <= room else dataclasses.replace(request, max_tokens=room)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Turn] = loop.create_future()
        bundle = self._waiting.setdefault(key := bundle_key(request), [])
        bundle.append((request, turn))
        if len(bundle) == 1:  # sent when everybody who can ask now has asked
            loop.call_soon(self._send, key)
        return await turn

    def _send(self, key: Hashable) -> None:
        bundle = sorted(self._waiting.pop(key), key=lambda item: (item[0].order, item[0].key))
        call = asyncio.get_running_loop().create_task(self._call(bundle))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        for _, turn in bundle:  # nobody waits any more: the call is given up, and the server stops working on it
            turn.add_done_callback(lambda _: call.cancel() if all(other.cancelled() for _, other in bundle) else None)

    async def _call(self, bundle: Sequence[tuple[Request, asyncio.Future[Turn]]]) -> None:
        requests = [request for request, _ in bundle]
        eos_ids = self.policies[requests[0].policy].eos_ids
        body = completion_body(requests, model=self._model, eos_ids=eos_ids, regex=self.config.structured_outputs_regex)
        version = self.version
        try:
            turns = turns_of(await self.client.complete(body), requests, eos_ids, version)
        except Exception as error:
            for _, turn in bundle:
                if not turn.done():
                    turn.set_exception(error)
            return
        for (_, turn), result in zip(bundle, turns, strict=True):
            if not turn.done():
                turn.set_result(result)

    # scores

    def score(self, policy: str, ids: Sequence[np.ndarray], top_k: int | None = None) -> list[Score]:
        """Log-probs of each sequence under the servers' weights, at temperature 1 and without truncation. Raises BadPrompt.

        A server that another trainer sends weights meanwhile gives up what it works on, and is asked again.
        """
        servers, until = self.fleet.control.urls, time.monotonic() + self.config.timeout

        def ask(place: int) -> Score:
            tokens = [int(token) for token in ids[place]]
            if len(tokens) >= self.context:
                raise BadPrompt(f"a sequence of {len(tokens)} tokens cannot be scored: the server's context is {self.context}, and one token must be left")
            while True:
                answer = self.fleet.control.call(servers[place % len(servers)], "POST", "v1/completions", score_body(tokens, top_k, self._model))
                try:
                    return score_of(answer, tokens, top_k)
                except Aborted:
                    if time.monotonic() > until:
                        raise
                    time.sleep(PAUSE)

        return self.fleet.control.map(ask, range(len(ids)))

    @property
    def _model(self) -> str:
        """What a request names: the model, or the adapter that travels alone. Ranks that sent none know its version."""
        if self.config.sync_lora != "adapter":
            return self.fleet.model
        return self.fleet.target.adapter or adapter_name(self.version)

    # life

    def recover(self) -> bool:
        """After a failure: start launched servers that died again, if generation.restart allows. Returns whether that was it, on every rank alike.

        The new servers have no weights yet: everything is to be sent again. Raises UserError on every rank when a server does not start.
        """
        if not self.fleet.recover():
            return False
        self._use_fleet()
        return True

    def counters(self) -> dict[str, tuple[float, float]]:
        """What happened since the last call: name -> (sum, count). Counted once for all ranks."""
        retries, restarts = self.client.retries - self._counted_retries, self.fleet.restarts - self._counted_restarts
        self._counted_retries, self._counted_restarts = self.client.retries, self.fleet.restarts
        first = self.trainer.rank == 0
        return {"generation/retries": (float(retries), float(first)), "generation/restarts": (float(restarts) if first else 0.0, float(first))}

    def close(self) -> None:
        """Stop the servers that were started. A second call does nothing."""
        self.fleet.close()

    def _use_fleet(self) -> None:
        fleet, config = self.fleet, self.config
        self.dtype, self.context, self.copies = fleet.dtype, fleet.context, len(fleet.servers)
        self.weights: WeightTarget = fleet.target
        self.client = Client(fleet.servers, timeout=config.timeout, request_timeout=config.request_timeout, first=self.trainer.rank)
        self._counted_retries = 0
