"""Checkpoints: a folder each, complete or absent, the newest N and the best kept.

checkpoints/step_000010/ holds weights/<network>.safetensors (trained weights), state.pt (optimizers, companions, progress, source,
algorithm, unfinished batch) and meta.json. `latest` points to the newest.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlexp.config.errors import UserError

PREFIX = "step_"


def step_of(path: Path) -> int:
    """The step in a checkpoint's name: compared as a number, because step_1000000 sorts before step_999990 as text."""
    return int(path.name.removeprefix(PREFIX))


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints below a folder, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=step_of)


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    found = checkpoints(folder)
    return found[-1] if found else None


def resolve(text: str) -> Path:
    """The checkpoint a user means: a checkpoint folder, a checkpoints/ folder, or a run folder."""
    path = Path(text)
    for candidate in (path, path / "latest", path / "checkpoints" / "latest"):
        if (candidate / "weights").is_dir():
            return candidate
    raise UserError(f"run.start_from={text} is no checkpoint: give a folder like outputs/NAME/checkpoints/step_000010")


def retain(folder: Path, keep_last: int, keep_steps: Iterable[int]) -> None:
    """Delete all but the newest keep_last and those of keep_steps. Called after the newest is complete."""
    kept = set(keep_steps)
    for path in checkpoints(folder)[:-keep_last]:
        if step_of(path) not in kept:
            shutil.rmtree(path)


def save(folder: Path, step: int, weights: dict[str, dict[str, torch.Tensor]], state: dict[str, Any], meta: dict[str, Any]) -> Path:
    """Write a checkpoint: into a temporary folder, synced, then renamed. Raises UserError when the disk is full; older ones stay."""
    final, temporary = folder / f"{PREFIX}{step:06d}", folder / f".writing-{PREFIX}{step:06d}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        (temporary / "weights").mkdir(parents=True)
        for name, tensors in weights.items():
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, temporary / "weights" / f"{name}.safetensors")
        torch.save(state, temporary / "state.pt")
        (temporary / "meta.json").write_text(json.dumps({"step": step, **meta}, indent=1))
        for path in sorted(temporary.rglob("*")):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        link = folder / ".latest"
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        os.replace(link, folder / "latest")
        _sync(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left on the disk for the checkpoint of step {step}: free some or lower checkpoint.keep_last, then run the same command to continue"
            ) from error
        raise
    return final


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_weights(path: Path, networks: dict[str, torch.nn.Module]) -> None:
    """Load the trained weights of a checkpoint. Raises UserError when it has other networks or shapes."""
    for name, network in networks.items():
        file = path / "weights" / f"{name}.safetensors"
        if not file.is_file():
            raise UserError(f"{path} holds no weights for {name}: it is not a checkpoint of this kind of run (run.start_from)")
        tensors = load_file(file)
        own = dict(network.named_parameters())
        wrong = [key for key, value in tensors.items() if key not in own or own[key].shape != value.shape]
        if wrong:
            hint = "choose the model and peft options the checkpoint was made with"
            raise UserError(f"{path}: {len(wrong)} weights of {name} do not fit this model, e.g. {wrong[0]}: {hint}")
        with torch.no_grad():
            for key, value in tensors.items():
                own[key].copy_(value)


def load_state(path: Path) -> dict[str, Any]:
    """Everything else of a checkpoint of this run (made by rlexp itself, so it may hold plain Python objects)."""
    return torch.load(path / "state.pt", map_location="cpu", weights_only=False)


def same_data(path: Path, saved: str, now: str) -> None:
    """Refuse to continue on other data: the order of tasks would not be the one the checkpoint stands in."""
    if saved != now:
        raise UserError(f"the data changed since {path.name} was saved: restore the old data, or start a new run with run.name=... run.start_from={path}")
