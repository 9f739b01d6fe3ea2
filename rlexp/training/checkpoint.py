"""Checkpoints: a folder each, complete or absent, the newest N and the best kept.

checkpoints/step_000010/ holds weights/<network>.safetensors (trained weights), state.pt (optimizers, companions, progress, source,
algorithm, unfinished batch) and meta.json. `latest` points to the newest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rlexp.config.errors import UserError
from rlexp.training.disk import full_disk_explained

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
    for candidate in (path, latest(path), latest(path / "checkpoints")):
        if candidate is not None and (candidate / "weights").is_dir():
            return candidate
    model = f"; weights in Hugging Face format are given by model=hub model.path={text}" if (path / "config.json").is_file() else ""
    raise UserError(f"run.start_from={text} is no checkpoint: give a folder like outputs/NAME/checkpoints/step_000010{model}")


def find(folder: Path, name: str | None) -> Path | None:
    """The checkpoint of a run that a user names: step_000010, latest, best, or a path; None is the newest. Returns None when there is none at all.

    folder: the run's checkpoints. Raises UserError for a name that is not there.
    """
    found = checkpoints(folder)
    if name is None:
        return latest(folder)
    best = meta(found[-1]).get("best") if found else None
    named = {path.name: path for path in found} | ({"latest": found[-1]} if found else {})
    if best and (path := folder / f"{PREFIX}{int(best[0][1]):06d}") in found:
        named["best"] = path
    if name in named:
        return named[name]
    if (Path(name) / "weights").is_dir():
        return Path(name)
    raise UserError(f"checkpoint={name} is not there: choose {', '.join(named) or 'none, this run kept no checkpoint'}")


def meta(path: Path) -> dict[str, Any]:
    """What meta.json of a checkpoint says: step, weight version, and best: [value of checkpoint.metric, step] of the best ones so far."""
    try:
        return json.loads((path / "meta.json").read_text())
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """The error for a checkpoint that cannot be read: half copied, on a bad disk, changed by hand."""
    path = path.resolve()
    beside = checkpoints(path.parent)
    older = beside[: beside.index(path)] if path in beside else []
    then = f"the next older one, {older[-1].name}, is used then" if older else "there is no older one beside it, so its run starts anew then"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"the checkpoint {path} is damaged ({reason}): delete that folder; {then}")


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
    folder.mkdir(exist_ok=True)
    try:
        with full_disk_explained(f"the checkpoint of step {step}", folder, " or lower checkpoint.keep_last"):
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
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_weights(path: Path, networks: Mapping[str, torch.nn.Module]) -> None:
    """Load the trained weights of a checkpoint. Raises UserError when it has other networks or shapes."""
    for name, network in networks.items():
        file = path / "weights" / f"{name}.safetensors"
        if not file.is_file():
            raise UserError(f"{path} holds no weights for {name}: it is damaged, or no checkpoint of this kind of run (run.start_from)")
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from error
        own = dict(network.named_parameters())
        wrong = [key for key, value in tensors.items() if key not in own or own[key].shape != value.shape]
        wrong += [key for key, value in own.items() if value.requires_grad and key not in tensors]
        if wrong:
            hint = "choose the model and peft options the checkpoint was made with"
            raise UserError(f"{path}: {len(wrong)} weights of {name} do not fit this model, e.g. {wrong[0]}: {hint}")
        with torch.no_grad():
            for key, value in tensors.items():
                own[key].copy_(value)


def load_state(path: Path) -> dict[str, Any]:
    """Everything else of a checkpoint of this run (made by rlexp itself, so it may hold plain Python objects). Raises UserError for a damaged one."""
    try:
        return torch.load(path / "state.pt", map_location="cpu", weights_only=False)
    except Exception as error:  # whatever torch, zipfile or pickle make of a damaged file
        raise damaged(path, error) from error


def same_data(path: Path, saved: str, now: str) -> None:
    """Refuse to continue on other data: the order of tasks would not be the one the checkpoint stands in."""
    if saved != now:
        raise UserError(f"the data changed since {path.name} was saved: restore the old data, or start a new run with run.name=... run.start_from={path}")
