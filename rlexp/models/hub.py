"""`model=hub`: any causal language model from the Hugging Face hub or a local folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from rlexp.config.errors import UserError
from rlexp.config.model import HubModelConfig, ModelConfig
from rlexp.distributed import skeleton
from rlexp.models.fetch import fetch
from rlexp.models.loaded import LoadedModel
from rlexp.records import keys

TOKENIZER_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
WEIGHT_FILES = ["*.safetensors"]


def load(config: HubModelConfig, *, seed: int) -> LoadedModel:
    """Load a model and its tokenizer. seed: of random weights, where the config asks for them.

    Raises UserError, naming the key, when the path is neither a folder nor reachable, is not a causal LM, or has no
    safetensors weights (nothing is ever unpickled).
    """
    code = ["*.py"] if config.trust_remote_code else []
    weights = [] if config.random_weights or skeleton.is_wanted() else WEIGHT_FILES
    folder = fetch(config.path, config.revision, [*TOKENIZER_FILES, *weights, *code], "model.path")
    tokenizer_folder = folder
    if config.tokenizer is not None:
        tokenizer_folder = fetch(config.tokenizer, None, [*TOKENIZER_FILES, *code], "model.tokenizer")
    return load_folder(
        folder,
        config,
        seed=seed,
        label=Path(config.path.rstrip("/")).name,
        tokenizer_folder=tokenizer_folder,
        trust_remote_code=config.trust_remote_code,
        random_weights=config.random_weights,
        origin=None if Path(config.path).expanduser().is_dir() else config.path,
    )


def architecture(config: HubModelConfig) -> PretrainedConfig:
    """The sizes of a model, from its config.json alone. Raises UserError as `load` does."""
    code = ["*.py"] if config.trust_remote_code else []
    return _architecture(fetch(config.path, config.revision, ["config.json", *code], "model.path"), config.trust_remote_code)


def load_folder(
    folder: Path,
    config: ModelConfig,
    *,
    seed: int,
    label: str,
    tokenizer_folder: Path | None = None,
    trust_remote_code: bool = False,
    random_weights: bool = False,
    origin: str | None = None,
) -> LoadedModel:
    """The model of a local folder. Sampling settings in the folder's generation config are dropped: only its EOS ids are taken.

    origin: the name under which a saved adapter finds its base again; None: the folder.
    """
    architecture = _architecture(folder, trust_remote_code)
    tokenizer = tokenizer_in(tokenizer_folder or folder, config.chat_template, trust_remote_code)
    module: Any = _module(folder, architecture, config, seed=seed, trust_remote_code=trust_remote_code, random_weights=random_weights)
    embeddings = module.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > embeddings:
        raise UserError(
            f"model.tokenizer: it has {len(tokenizer)} tokens, the model only {embeddings} embeddings: use the model's own tokenizer (model.tokenizer=null)"
        )
    eos_ids = _eos_ids(folder, architecture, tokenizer, embeddings)
    module.generation_config = GenerationConfig(
        eos_token_id=list(eos_ids) or None,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    module.name_or_path = "" if random_weights else origin or str(folder)
    if config.disable_dropout:
        disable_dropout(module)
    return LoadedModel(module.eval(), tokenizer, eos_ids, context_of(architecture, tokenizer), label)


def disable_dropout(module: nn.Module) -> None:
    """Set every dropout probability of a network to 0: dropout modules, numbers that attention reads, and the config's."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        _zero_dropout(vars(part))
        if isinstance(getattr(part, "config", None), PretrainedConfig):
            _zero_dropout(vars(part.config))


def _zero_dropout(attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float):
            attributes[name] = 0.0


def _architecture(folder: Path, trust_remote_code: bool) -> PretrainedConfig:
    try:
        architecture = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        hint = (
            ": it ships its own code; set model.trust_remote_code=true if you trust it"
            if "trust_remote_code" in str(error)
            else f" ({str(error).splitlines()[0]})"
        )
        raise UserError(f"model.path={folder} cannot be read as a model{hint}") from error
    names = architecture.architectures or []
    mapped = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(architecture), None)
    candidates = mapped if isinstance(mapped, (tuple, list)) else (mapped,)
    known = {candidate.__name__ for candidate in candidates if candidate is not None}
    if "AutoModelForCausalLM" in (getattr(architecture, "auto_map", None) or {}) and trust_remote_code:
        known |= set(names)
    if not known or (names and not known & set(names)):
        what = ", ".join(names) or architecture.model_type
        raise UserError(f"model.path={folder} is no causal language model but {what}: choose one whose architecture ends in ForCausalLM")
    return architecture


def has_tokenizer(folder: Path) -> bool:
    """Whether a local folder holds files of a tokenizer."""
    return any(any(folder.glob(pattern)) for pattern in ("tokenizer*", "vocab*", "*.model", "*.tiktoken"))


def tokenizer_in(folder: Path, template: str | None, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder, padding on the left. template: file of a chat template that replaces its own. Raises UserError."""
    if not has_tokenizer(folder):
        raise UserError(f"model.tokenizer: {folder} has no tokenizer files: set model.tokenizer")  # transformers would make an empty one
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, padding_side="left")
    except Exception as error:  # a broken file makes the libraries raise anything
        raise UserError(f"model.tokenizer: {folder} has no tokenizer that can be loaded ({str(error).splitlines()[0]}): set model.tokenizer") from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise UserError(f"model.tokenizer: the tokenizer of {folder} has neither a pad nor an EOS token: set model.tokenizer to one that has")
        tokenizer.pad_token = tokenizer.eos_token
    if template is not None:
        file = Path(template).expanduser()
        if not file.is_file():
            raise UserError(f"model.chat_template={template} is no file: give the path of a Jinja template")
        tokenizer.chat_template = file.read_text(encoding="utf-8")
    return tokenizer


def _module(folder: Path, architecture: PretrainedConfig, config: ModelConfig, *, seed: int, trust_remote_code: bool, random_weights: bool) -> PreTrainedModel:
    # other attention than eager is put under the model later, where packed rows need it; None: torch's where the architecture has it
    attention = config.attention if config.attention in ("sdpa", "eager") else None
    options: dict[str, Any] = {"dtype": getattr(torch, config.dtype), "attn_implementation": attention, "trust_remote_code": trust_remote_code}
    if skeleton.is_wanted():
        with skeleton.META:
            return AutoModelForCausalLM.from_config(architecture, **options)
    with _random_state(seed):
        if random_weights:
            return AutoModelForCausalLM.from_config(architecture, **options)
        if not list(folder.glob("*.safetensors")):
            raise UserError(
                f"model.path={folder} has no *.safetensors weights (other formats can run code and are not read): convert it, or set model.random_weights=true"
            )
        loading: Any = AutoModelForCausalLM.from_pretrained(folder, config=architecture, use_safetensors=True, output_loading_info=True, **options)
    module, report = loading
    lacking = [*sorted(report["missing_keys"]), *sorted(str(key) for key in report["mismatched_keys"])]
    if lacking:
        raise UserError(
            f"model.path={folder}: the weights lack {', '.join(lacking[:5])}{' ...' if len(lacking) > 5 else ''}; they belong to another architecture"
        )
    return module


@contextlib.contextmanager
def _random_state(seed: int) -> Iterator[None]:
    """The global generator, which transformers draws initial weights from, seeded inside and left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.key(seed, "weights") % 2**63)
        yield


def _eos_ids(folder: Path, architecture: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> tuple[int, ...]:
    """All ids that end a completion: the generation config's (else the model config's) and the tokenizer's."""
    stated = architecture.get_text_config().eos_token_id
    if (folder / "generation_config.json").is_file():
        stated = GenerationConfig.from_pretrained(folder).eos_token_id
    ids = {tokenizer.eos_token_id, *(stated if isinstance(stated, (list, tuple)) else [stated])}
    return tuple(sorted(int(token) for token in ids if token is not None and 0 <= token < vocabulary))


def context_of(architecture: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> int:
    """The longest sequence: the architecture's, or the tokenizer's limit where the architecture has none (state-space models)."""
    positions = getattr(architecture.get_text_config(), "max_position_embeddings", None)
    return int(positions or min(tokenizer.model_max_length if tokenizer is not None else 2**20, 2**20))
