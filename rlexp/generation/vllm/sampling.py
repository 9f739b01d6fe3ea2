"""Requests as vLLM takes them, and its outputs as turns. Used for the engine in this process and for servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from rlexp.generation.base import refuse_arguments
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import EOS, LENGTH, STOP, Candidates, Turn

REFUSED = {
    "n": "set algorithm.num_generations",
    "seed": "every request has its own, from run.seed",
    "max_tokens": "set rollout.max_completion_length",
    "logprobs": "the log-probs of sampled tokens are always recorded",
    "prompt_logprobs": "the trainer asks for them itself",
    "ignore_eos": "a completion ends at its EOS ids",
    "detokenize": "token ids are what is trained on",
    "output_kind": "the trainer waits for whole completions",
    "flat_logprobs": "the trainer reads them so",
    "watermarking": "the watermark changes the distribution, and its log-probs are not those of the policy",
    "structured_outputs": "set generation.structured_outputs_regex",
}
"""arguments of SamplingParams that rlexp sets"""


def parameters(sampling: Sampling, eos_ids: Sequence[int], *, max_tokens: int, seed: int, n: int = 1, regex: str | None = None) -> dict[str, Any]:
    """The fields of a vLLM SamplingParams (or of a completion request), without output_kind and detokenize.

    Log-probs come with every token; when top_k cuts the distribution as many candidates come with each, those that were cut at -inf
    (logprobs mode processed_logprobs). EOS ids are given as stop ids, so that the model folder's own list plays no part.
    """
    fields: dict[str, Any] = {
        "n": n,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": max_tokens,
        "seed": seed,
        "stop_token_ids": sorted({*eos_ids, *sampling.stop_ids}),
        "ignore_eos": regex is None,
        "logprobs": sampling.top_k if sampling.truncated and sampling.top_k else 0,
        "skip_special_tokens": False,
    }
    if sampling.stop:
        fields |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return fields | dict(sampling.extra)


def seed_of(request: Request) -> int:
    """vLLM takes signed 64-bit seeds, and adds the number of a completion to that of its request."""
    return request.key % 2**62


def check_arguments(names: Iterable[str], known: Collection[str]) -> None:
    """Refuse generation_kwargs that rlexp sets itself or that vLLM does not know. Raises UserError."""
    refuse_arguments(names, refused=REFUSED, known=known, owner="vLLM's SamplingParams")


def finish_of(reason: str | None, stop_reason: int | str | None, last: int, eos_ids: Sequence[int]) -> str:
    """Finish of a turn. reason, stop_reason: vLLM's. last: the last token. EOS beats stop and stop beats length."""
    if last in eos_ids and reason in ("stop", "length"):
        return EOS
    if reason == "length":
        return LENGTH
    if reason == "stop":
        return STOP
    raise RuntimeError(f"vLLM ended a completion without a reason to train on it: finish_reason={reason}, stop_reason={stop_reason}")


def candidates_of(places: Iterable[tuple[Sequence[int], Sequence[float]]]) -> Candidates:
    """The candidates of each token from the ids and log-probs that came with it: those that were not cut, each once, in rising order."""
    kept = [np.unique(np.asarray(ids, np.int64)[np.asarray(logprobs) > -np.inf]) for ids, logprobs in places]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in kept])]).astype(np.int64)
    return Candidates(np.concatenate(kept) if kept else np.zeros(0, np.int64), offsets)


def turn_of(prompt: np.ndarray, completion: Any, sampling: Sampling, eos_ids: Sequence[int], version: int) -> Turn:
    """A turn of a vllm CompletionOutput whose log-probs are flat: the first of each token is that of the sampled id, then its candidates."""
    ids, flat = list(completion.token_ids), completion.logprobs
    finish = finish_of(completion.finish_reason, completion.stop_reason, ids[-1] if ids else -1, eos_ids)
    logprobs = np.array([flat.logprobs[start] for start in flat.start_indices], np.float32)
    sampled = [flat.token_ids[start] for start in flat.start_indices]
    if sampled != ids:
        raise RuntimeError("vLLM's log-probs are not those of the tokens it returned")
    candidates = None
    if sampling.truncated and sampling.top_k:
        ranges = zip(flat.start_indices, flat.end_indices, strict=True)
        candidates = candidates_of((flat.token_ids[start:end], flat.logprobs[start:end]) for start, end in ranges)
    return Turn(np.asarray(prompt, np.int64), np.array(ids, np.int64), logprobs, finish, version, candidates)
