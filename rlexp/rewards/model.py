"""`reward=model`: the score of a trained reward model (rows GRPO-113, GRPO-114)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PretrainedConfig

from rlexp.config.errors import UserError
from rlexp.config.reward import ModelRewardConfig
from rlexp.distributed import skeleton
from rlexp.rewards.terms import ModelFunction


class ModelScore(ModelFunction):
    """logits[:, 0] of a sequence-classification model with one label, on prompt and completion together.

    Conversations go through the reward model's own chat template, plain text is joined; no special tokens are added, the batch is
    padded on the right. Float32, evaluation mode, no gradient. On the CPU until somebody moves `module`.
    """

    def __init__(self, config: ModelRewardConfig) -> None:
        """Raises UserError for a path that cannot be loaded or is no sequence classifier."""
        architecture = classifier_architecture(config)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(config.tokenizer or config.path, **_source(config))
            self.module = _classifier(config, architecture).requires_grad_(False).eval()
        except (OSError, ValueError) as error:
            raise _not_loaded(config, error) from error
        self.tokenizer.padding_side = "right"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.module.config.pad_token_id = self.tokenizer.pad_token_id
        self.batch_size = config.batch_size

    @torch.no_grad()
    def __call__(self, prompts: list[Any], completions: list[Any]) -> list[float]:
        """One number per completion."""
        texts = [self._text(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        device = self.module.device
        scores: list[float] = []
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # rewards run in a thread, which starts on the first GPU
            for start in range(0, len(texts), self.batch_size):
                batch = self.tokenizer(texts[start : start + self.batch_size], return_tensors="pt", padding=True, add_special_tokens=False)
                scores.extend(self.module(**batch.to(device)).logits[:, 0].float().tolist())
        return scores

    def _text(self, prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return prompt + completion
        return str(self.tokenizer.apply_chat_template([*prompt, *completion], tokenize=False))


def classifier_architecture(config: ModelRewardConfig) -> PretrainedConfig:
    """The sizes of a reward model. Raises UserError for a path that cannot be read or is no sequence classifier."""
    try:
        architecture = AutoConfig.from_pretrained(config.path, num_labels=1, **_source(config))
    except (OSError, ValueError) as error:
        raise _not_loaded(config, error) from error
    if not any(name.endswith("ForSequenceClassification") for name in architecture.architectures or []):
        found = ", ".join(architecture.architectures or []) or "no architecture"
        raise UserError(f"reward.terms.*.path={config.path} is no reward model: it holds {found}, and a sequence-classification model is needed")
    return architecture


def empty_classifier(config: ModelRewardConfig, architecture: PretrainedConfig) -> nn.Module:
    """The model, float32, with whatever numbers the device of the context gives it."""
    module: nn.Module = AutoModelForSequenceClassification.from_config(architecture, dtype=torch.float32, trust_remote_code=config.trust_remote_code)
    return module


def _classifier(config: ModelRewardConfig, architecture: PretrainedConfig) -> Any:
    if skeleton.is_wanted():
        with skeleton.META:
            return empty_classifier(config, architecture)
    return AutoModelForSequenceClassification.from_pretrained(config.path, config=architecture, dtype=torch.float32, use_safetensors=True, **_source(config))


def _source(config: ModelRewardConfig) -> dict[str, Any]:
    return {"revision": config.revision, "trust_remote_code": config.trust_remote_code}


def _not_loaded(config: ModelRewardConfig, error: Exception) -> UserError:
    return UserError(f"the reward model {config.path} cannot be loaded ({str(error).splitlines()[0]}): check the path given to reward=model")
