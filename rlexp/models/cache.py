"""The folder for models that are made or converted once: atomic, and safe when several processes want the same at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlexp.config.errors import UserError


def cache_root() -> Path:
    """RLEXP_CACHE, or `rlexp` in the user's cache folder."""
    if chosen := os.environ.get("RLEXP_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlexp"


def place(name: str, recipe: Mapping[str, Any]) -> Path:
    """The folder of a made model, whether it is there yet or not. recipe: everything the contents depend on (its hash is part of the name)."""
    digest = hashlib.blake2b(json.dumps(recipe, sort_keys=True).encode(), digest_size=6).hexdigest()
    return cache_root() / f"{name}-{digest}"


def cached(name: str, recipe: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
    """The folder that `make(folder)` fills, made on first use only.

    recipe: everything the contents depend on. A second process waits for the first; one that dies half-way leaves nothing behind that is
    taken for finished. Raises UserError when the cache cannot be written.
    """
    folder = place(name, recipe)
    root = folder.parent
    if _is_whole(folder):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with open(root / f"{folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(folder):
                _make(folder, make)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise UserError(f"the model cache {root} cannot be written ({error}): set the environment variable RLEXP_CACHE to a folder of yours") from error
    return folder


def write_model(module: Any, tokenizer: Any, folder: Path) -> None:
    """Model and tokenizer, as transformers writes them, also in a process that is not rank 0 of a run: `save_pretrained` would leave the model out."""
    module.should_save_on_this_rank = lambda is_main_process: is_main_process
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    for left_over in folder.parent.glob(f"{folder.name}.*/"):  # of one that was killed; the lock is held
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        make(work)
        if not _is_whole(work):
            raise RuntimeError(f"no model was written into {work}")
        work.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)  # one without a model
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
