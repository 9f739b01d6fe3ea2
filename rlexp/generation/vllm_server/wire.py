"""Requests and turns as vLLM's completions endpoint speaks them: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from rlexp.config.errors import UserError
from rlexp.generation.vllm.sampling import candidates_of, finish_of, parameters, seed_of
from rlexp.generation.weight_sync.base import Score
from rlexp.records.request import Request
from rlexp.records.turn import Turn

OUT = -9000.0
"""vLLM writes -9999 for minus infinity, which JSON does not know: such a candidate was cut off"""
_PREFIX = "token_id:"


class Aborted(RuntimeError):
    """The server dropped a request that was under way (somebody paused it with mode=abort)."""


def bundle_key(request: Request) -> Hashable:
    """Requests with the same key can share one call: same prompt, policy, sampling and length."""
    return (np.asarray(request.ids, np.int64).tobytes(), request.policy, request.sampling, request.max_tokens)


def completion_body(requests: Sequence[Request], *, model: str, eos_ids: Sequence[int], regex: str | None) -> dict[str, Any]:
    """The JSON of one call for requests that share a bundle key, in the order of `Request.order`.

    vLLM seeds sample i of the call with seed + i, so each rollout's draws are a function of the first one's random key and its place.
    """
    first = requests[0]
    fields = parameters(first.sampling, eos_ids, max_tokens=first.max_tokens, seed=seed_of(first), n=len(requests), regex=regex)
    if regex is not None:
        fields["structured_outputs"] = {"regex": regex}
    prompt = np.asarray(first.ids, np.int64).tolist()
    return {"model": model, "prompt": prompt, "return_token_ids": True, "return_tokens_as_token_ids": True, **fields}


def turns_of(answer: Mapping[str, Any], requests: Sequence[Request], eos_ids: Sequence[int], version: int) -> list[Turn]:
    """The turns in an answer, one for each request, in order. Raises Aborted."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    if len(choices) != len(requests):
        raise UserError(
            f"the server gave {len(choices)} completions where {len(requests)} were asked for: it is no vLLM 0.32, or something changes its answers"
        )
    return [_turn(choice, request, eos_ids, version) for choice, request in zip(choices, requests, strict=True)]


def _turn(choice: Mapping[str, Any], request: Request, eos_ids: Sequence[int], version: int) -> Turn:
    if choice.get("token_ids") is None or choice.get("logprobs") is None:
        raise UserError("the server returns no token ids or no log-probs: it must be vLLM 0.32 or newer")
    ids = np.asarray(choice["token_ids"], np.int64)
    logprobs = np.array([np.nan if value is None else value for value in choice["logprobs"]["token_logprobs"]], np.float32)
    if len(ids) != len(logprobs):
        raise UserError(f"the server gave {len(logprobs)} log-probs for {len(ids)} tokens: it must be vLLM 0.32 or newer")
    candidates = candidates_of(map(_listed, choice["logprobs"]["top_logprobs"])) if request.sampling.truncated and request.sampling.top_k else None
    return Turn(np.asarray(request.ids, np.int64), ids, logprobs, _finish(choice, ids, eos_ids), version, candidates)


def _finish(choice: Mapping[str, Any], ids: np.ndarray, eos_ids: Sequence[int]) -> str:
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        raise Aborted(f"a request ended with {reason!r}")
    return finish_of(reason, choice.get("stop_reason"), int(ids[-1]) if len(ids) else -1, eos_ids)


def _listed(top: Mapping[str, float] | None) -> tuple[list[int], list[float]]:
    """Ids and log-probs that came with a token; those that were cut off at minus infinity again."""
    pairs = [(int(name.removeprefix(_PREFIX)), value if value > OUT else -np.inf) for name, value in (top or {}).items()]
    return [token for token, _ in pairs], [value for _, value in pairs]


def score_body(ids: Sequence[int], top_k: int | None, model: str) -> dict[str, Any]:
    """The JSON that asks for the log-probs of given ids. One token is sampled too, because vLLM cannot do without."""
    return {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_k or 0, "return_token_ids": True}


def score_of(answer: Mapping[str, Any], ids: Sequence[int], top_k: int | None) -> Score:
    """The log-probs in its answer. For each position the server lists the given token and the top_k most probable ones. Raises Aborted."""
    if answer["choices"][0]["finish_reason"] == "abort":
        raise Aborted("the vLLM server gave up a text that it was to score, because somebody sends it weights")
    listed = answer["choices"][0]["prompt_logprobs"][1:]
    own = np.array([entries[str(token)]["logprob"] for entries, token in zip(listed, ids[1:], strict=True)], np.float32)
    if not top_k:
        return Score(own)
    ranked = [sorted(entries.items(), key=lambda item: item[1]["rank"])[:top_k] for entries in listed]
    shape = (len(listed), top_k)
    top_ids = np.array([[int(token) for token, _ in row] for row in ranked], np.int64).reshape(shape)
    top_logprobs = np.array([[entry["logprob"] for _, entry in row] for row in ranked], np.float32).reshape(shape)
    return Score(own, top_ids, top_logprobs)
