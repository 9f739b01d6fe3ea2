"""generation=transformers: transformers' `generate()`, with our keyed draws (rows GRPO-077...086, 183).

`generate` runs greedily over scores from which our last logits processor has already drawn: only the drawn token is left. So the
random numbers, the order of top_k, top_p and min_p, and the log-probs are those of the native sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from rlexp.config.generation import TransformersGenerationConfig
from rlexp.generation.base import Policy, refuse_arguments, sampling_from
from rlexp.generation.batches import ModelGenerator, pad_id_of, prompts_of
from rlexp.generation.inference import causal_model, inference
from rlexp.generation.ledger import Ledger
from rlexp.records.request import Request
from rlexp.records.turn import Turn

_NO_LOGPROBS = "its completions have no sampling distribution, so no log-probs to train with"
_NOT_SAMPLED = "generate() would ignore it, because rlexp draws the tokens itself"
_REFUSED = {
    "num_beams": _NO_LOGPROBS,
    "num_return_sequences": "set algorithm.num_generations",
    "max_new_tokens": "set rollout.max_completion_length",
    "max_length": "set rollout.max_completion_length",
    "eos_token_id": "set generation.stop_ids",
    "do_sample": "completions are always sampled in training; evaluation.temperature=0 is greedy",
    "cache_implementation": "set generation.cache_implementation",
    "prompt_lookup_num_tokens": _NO_LOGPROBS,
    "penalty_alpha": _NO_LOGPROBS,
    "dola_layers": _NO_LOGPROBS,
    "custom_generate": _NO_LOGPROBS,
    **dict.fromkeys(("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "watermarking_config"), _NOT_SAMPLED),
}


class TransformersGenerator(ModelGenerator):
    """The second backend: for architectures and generation_kwargs that the native sampler lacks."""

    def __init__(self, config: TransformersGenerationConfig, *, policies: Mapping[str, Policy]) -> None:
        super().__init__(policies)
        self.config = config
        extra = [name for name, _ in sampling_from(config).extra]
        refuse_arguments(extra, refused=_REFUSED, known=set(GenerationConfig().to_dict()), owner="transformers' GenerationConfig")

    def fits(self, policy: Policy, rows: int, prompt: int, completion: int) -> bool:
        """At most generation.batch_size rows, whose common padded length stays inside the context."""
        return rows <= self.config.batch_size and prompt + completion <= policy.context

    def sample_batch(self, policy: Policy, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request."""
        prompts, pad_id = prompts_of(requests, policy, distinct=False), pad_id_of(policy)
        ledger = Ledger(requests, policy, prompts.ids.device)
        config = self._generation_config(policy, requests[0], ledger.width, pad_id)
        causal = causal_model(policy.module)
        with inference(policy.module), _only(causal, config):
            causal.generate(
                prompts.ids,
                attention_mask=torch.ones_like(prompts.ids) if prompts.mask is None else prompts.mask,
                generation_config=config,
                logits_processor=LogitsProcessorList([_Draw(ledger, prompts.ids.shape[1], pad_id)]),
                stopping_criteria=StoppingCriteriaList([_Ends(ledger, prompts.ids.shape[1])]),
            )
        return ledger.turns(self.version)

    def _generation_config(self, policy: Policy, request: Request, width: int, pad_id: int) -> GenerationConfig:
        """Built from nothing; what shapes the distribution is done by our processor, except the arguments only transformers knows."""
        ends = sorted({*policy.eos_ids, *request.sampling.stop_ids})
        return GenerationConfig(
            do_sample=False,
            max_new_tokens=width,
            eos_token_id=ends or None,
            pad_token_id=pad_id,
            use_cache=True,
            cache_implementation=self.config.cache_implementation,
            **dict(request.sampling.extra),
        )


@contextmanager
def _only(causal: Any, config: GenerationConfig) -> Iterator[None]:
    """Hide the model folder's generation_config: generate() fills unset arguments from it (temperature, top_k, repetition_penalty)."""
    own, causal.generation_config = causal.generation_config, config
    try:
        yield
    finally:
        causal.generation_config = own


class _Draw(LogitsProcessor):
    """Draws the next token of each unfinished row and leaves only it; finished rows get padding. Must come last."""

    def __init__(self, ledger: Ledger, prompt_width: int, pad_id: int) -> None:
        self.ledger, self.prompt_width, self.pad_id = ledger, prompt_width, pad_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        alive = (self.ledger.code == 0).nonzero()[:, 0]
        ids = torch.full_like(input_ids[:, 0], self.pad_id)
        ids[alive] = self.ledger.draw(scores[alive], alive, input_ids.shape[1] - self.prompt_width)
        return torch.full_like(scores, -torch.inf).scatter_(1, ids[:, None], 0.0)


class _Ends(StoppingCriteria):
    """Which rows have ended, by the same rules as the native sampler."""

    def __init__(self, ledger: Ledger, prompt_width: int) -> None:
        self.ledger, self.prompt_width = ledger, prompt_width

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        alive = (self.ledger.code == 0).nonzero()[:, 0]
        self.ledger.end(alive, input_ids.shape[1] - self.prompt_width - 1)
        return self.ledger.code != 0
