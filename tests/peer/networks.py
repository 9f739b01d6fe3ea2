"""The networks that both sides load."""

from __future__ import annotations

from pathlib import Path

import torch
from models_for_tests import tiny_model


def saved(folder: Path, seed: int, kind: str = "qwen3") -> Path:
    """Save a network that both sides load."""
    loaded = tiny_model(dtype=torch.float32, spread=2.0, seed=seed, kind=kind)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder
