"""A model whose next-token logits are row `last id` of a V x V table, so that every log-prob is known by hand."""

from __future__ import annotations

import re
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from rlexp.models.loaded import LoadedModel


class TableConfig(PretrainedConfig):
    model_type = "table"

    def __init__(self, vocab_size: int = 4, max_position_embeddings: int = 64, **kwargs: Any) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.num_hidden_layers = 1
        super().__init__(tie_word_embeddings=False, **kwargs)


class TableBackbone(PreTrainedModel):
    """Hidden state of a position: the one-hot of its id. It fills a cache so that lengths are counted, and ignores what it holds."""

    config_class = TableConfig

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.vocab_size)
        self.embed.weight.requires_grad_(False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is getattr(self, "embed", None):
            module.weight.data.copy_(torch.eye(self.config.vocab_size))

    def forward(self, input_ids: Tensor, past_key_values: Any = None, **kwargs: Any) -> BaseModelOutputWithPast:
        hidden = self.embed(input_ids)
        if past_key_values is not None:
            past_key_values.update(hidden[:, None, :, :1], hidden[:, None, :, :1], 0)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=past_key_values)


class TableModel(PreTrainedModel, GenerationMixin):
    config_class = TableConfig
    base_model_prefix = "model"

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.model = TableBackbone(config)
        self.lm_head = nn.Linear(config.vocab_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        return

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def forward(self, input_ids: Tensor, past_key_values: Any = None, logits_to_keep: int = 0, **kwargs: Any) -> CausalLMOutputWithPast:
        output = self.model(input_ids, past_key_values)
        return CausalLMOutputWithPast(logits=self.lm_head(output.last_hidden_state[:, -logits_to_keep:]), past_key_values=past_key_values)


def word_tokenizer(words: list[str], special: tuple[int, ...] = (), eos: int | None = None, pad: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer that decodes id i to words[i], without spaces between, and cuts text into these words. special: ids that are special tokens."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=words[eos] if eos is not None else None,
        pad_token=words[pad] if pad is not None else words[0],
        additional_special_tokens=[words[i] for i in special],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def table_model(
    probabilities: Any,
    *,
    words: list[str] | None = None,
    special: tuple[int, ...] = (),
    eos_ids: tuple[int, ...] = (),
    context: int = 64,
    dtype: torch.dtype = torch.float64,
) -> LoadedModel:
    """A table model as a LoadedModel. probabilities: [V, V], row i is the next-token distribution after id i; or [V], the same after every id."""
    table = torch.as_tensor(probabilities, dtype=dtype)
    if table.dim() == 1:
        table = table.expand(len(table), -1)
    vocab = table.shape[0]
    module = TableModel(TableConfig(vocab, context)).to(dtype)
    with torch.no_grad():
        module.lm_head.weight.copy_(table.log().T.clamp(min=-1e30))
        module.model.embed.weight.copy_(torch.eye(vocab, dtype=dtype))
    tokenizer = word_tokenizer(words or [chr(97 + i) for i in range(vocab)], special, eos_ids[0] if eos_ids else None)
    return LoadedModel(module.eval(), tokenizer, eos_ids, context, "table")
