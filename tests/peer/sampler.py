"""Log-probs of a sampler that is not the trainer, and of the policy itself, by plain forwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from peer.rollouts import Rollouts
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def distributions(model: Path, rollouts: Rollouts) -> list[list[tuple[Tensor, Tensor]]]:
    """The log-probs of all tokens at each sampled one, [T, V], and the sampled ids, [T], by [task][rollout], one forward each."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    made: list[list[tuple[Tensor, Tensor]]] = []
    for row, answers in zip(rollouts.rows(), rollouts.ids(tokenizer), strict=True):
        text = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        made.append([])
        for ids in answers:
            logits = network(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            made[-1].append((logits.log_softmax(-1), torch.tensor(ids)))
    return made


def policy_logprobs(model: Path, rollouts: Rollouts) -> list[list[list[float]]]:
    """log pi of every sampled token by [task][rollout][token]."""
    return [[logp.gather(1, ids[:, None])[:, 0].tolist() for logp, ids in group] for group in distributions(model, rollouts)]


def kept_masses(model: Path, rollouts: Rollouts, top: int) -> list[list[list[float]]]:
    """The probability of the sampled token and the `top` most probable ones together, by [task][rollout][token]."""
    made: list[list[list[float]]] = []
    for group in distributions(model, rollouts):
        made.append([])
        for logp, ids in group:
            kept = torch.zeros_like(logp).scatter(1, logp.topk(top).indices, 1.0).scatter(1, ids[:, None], 1.0)
            made[-1].append((logp.exp() * kept).sum(1).tolist())
    return made


def near_policy(model: Path, rollouts: Rollouts, spread: float = 0.4, seed: int = 7) -> Rollouts:
    """The rollouts with sampler log-probs that differ from the policy's by normal noise, the same for every call."""
    draw = np.random.default_rng(seed)
    logprobs = [[[x + spread * draw.standard_normal() for x in tokens] for tokens in group] for group in policy_logprobs(model, rollouts)]
    return rollouts.changed(logprobs=logprobs)
