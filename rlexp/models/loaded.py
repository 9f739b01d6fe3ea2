"""What every model option gives: a causal language model with its tokenizer and the few facts the rest of the house needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedTokenizerBase


@dataclass
class LoadedModel:
    """A model ready to sample from and to train."""

    module: nn.Module
    """a transformers causal LM, or a peft model around one"""
    tokenizer: PreTrainedTokenizerBase
    """pads left; its pad token is set"""
    eos_ids: tuple[int, ...]
    """ids that end a completion: the generation config's and the tokenizer's, sorted"""
    context: int
    """longest sequence, prompt and completion together, in tokens"""
    label: str
    """short name for run folders"""
