"""`reward=model`: the score of a trained reward model (rows GRPO-113, GRPO-114)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rlexp.config.errors import UserError
from rlexp.config.reward import ModelRewardConfig


class ModelScore:
    """logits[:, 0] of a sequence-classification model with one label, on prompt and completion together.

    Conversations go through the reward model's own chat template, plain text is joined; no special tokens are added, the batch is
    padded on the right. Float32, evaluation mode, no gradient.
    """

    def __init__(self, config: ModelRewardConfig) -> None:
        """Raises UserError for a path that cannot be loaded or is no sequence classifier."""
        options: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        try:
            architectures = AutoConfig.from_pretrained(config.path, **options).architectures or []
            if not any(name.endswith("ForSequenceClassification") for name in architectures):
                found = ", ".join(architectures) or "no architecture"
                raise UserError(f"reward.terms.*.path={config.path} is no reward model: it holds {found}, and a sequence-classification model is needed")
            self.tokenizer = AutoTokenizer.from_pretrained(config.tokenizer or config.path, **options)
            self.module = AutoModelForSequenceClassification.from_pretrained(
                config.path, num_labels=1, dtype=torch.float32, use_safetensors=True, **options
            ).eval()
        except (OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"the reward model {config.path} cannot be loaded ({str(error).splitlines()[0]}): check the path given to reward=model") from error
        self.tokenizer.padding_side = "right"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.module.config.pad_token_id = self.tokenizer.pad_token_id
        self.module.to("cuda" if torch.cuda.is_available() else "cpu")
        self.batch_size = config.batch_size

    @torch.no_grad()
    def __call__(self, prompts: list[Any], completions: list[Any]) -> list[float]:
        """One number per completion."""
        texts = [self._text(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        scores: list[float] = []
        for start in range(0, len(texts), self.batch_size):
            batch = self.tokenizer(texts[start : start + self.batch_size], return_tensors="pt", padding=True, add_special_tokens=False)
            logits = self.module(**batch.to(self.module.device)).logits
            scores.extend(logits[:, 0].float().tolist())
        return scores

    def _text(self, prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return prompt + completion
        return str(self.tokenizer.apply_chat_template([*prompt, *completion], tokenize=False))
