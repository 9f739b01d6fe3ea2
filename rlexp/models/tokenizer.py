"""A character-level tokenizer with a ChatML template, for the tiny model and for tests."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, START, END, UNKNOWN = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>"
SPECIAL = (PAD, START, END, UNKNOWN)
ROLES = ("user", "assistant", "system")
"""one token each, so that the frame of a chat costs few positions"""
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
"""newline and printable ASCII, one token each"""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def character_tokenizer(context: int = 512) -> PreTrainedTokenizerFast:
    """A tokenizer of 103 ids: four special tokens, newline, printable ASCII and three role names; other text becomes unknown tokens.

    There is no BOS. A turn ends with <|im_end|> (the EOS); padding is <|endoftext|>.
    """
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(list(ROLES))
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
