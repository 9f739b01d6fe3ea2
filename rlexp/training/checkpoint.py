"""Checkpoints: a folder each, complete or absent, the newest N and the best kept.

checkpoints/step_000010/ holds weights/<network>.safetensors (trained weights), state.pt (optimizers, companions, progress, source,
algorithm, unfinished batch) and meta.json. Where ranks hold parts of tensors there are weights/<network>/ and shards/ with a file of each rank
(shard_files.py). `latest` points to the newest.
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
from rlexp.distributed.collectives import Collectives
from rlexp.distributed.shards import Rows, assign, is_sharded, shape_of, whole
from rlexp.distributed.zero import is_partitioned
from rlexp.training.disk import full_disk_explained
from rlexp.training.shard_files import ShardFiles, put_back, taken_out, write_shards

PREFIX = "step_"
ALONE = Collectives()


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


def save(folder: Path, step: int, weights: dict[str, dict[str, torch.Tensor]], state: dict[str, Any], meta: dict[str, Any], ranks: Collectives = ALONE) -> Path:
    """Write a checkpoint: into a temporary folder, synced, then renamed. Raises UserError when the disk is full; older ones stay.

    weights: by network and name. state: everything else; tensors of its "trainables" may be sharded. ranks: those that hold shards call it
    together; each writes its own, and rank 0 the rest.
    """
    final, temporary = folder / f"{PREFIX}{step:06d}", folder / f".writing-{PREFIX}{step:06d}"
    try:
        with full_disk_explained(f"the checkpoint of step {step}", folder, " or lower checkpoint.keep_last"):
            if ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                (temporary / "weights").mkdir(parents=True)
            ranks.barrier()
            weights = {name: _gathered(tensors, ranks.rank == 0) for name, tensors in weights.items()}
            state = _write_shards(temporary, weights, _gathered(state, ranks.rank == 0), ranks)
            ranks.barrier()
            if ranks.rank == 0:
                _write_whole(temporary, weights, state, {"step": step, **meta})
                shutil.rmtree(final, ignore_errors=True)
                os.replace(temporary, final)
                link = folder / ".latest"
                link.unlink(missing_ok=True)
                link.symlink_to(final.name)
                os.replace(link, folder / "latest")
                _sync(folder)
    finally:
        if ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _gathered(tree: Any, keep: bool) -> Any:
    """The structure of dicts with tensors that ZeRO-3 holds in parts made whole, one after the other; keep: on this rank, in main memory, else without them."""
    if isinstance(tree, torch.Tensor) and is_partitioned(tree):
        made = whole(tree)
        return made.cpu() if keep else None
    if isinstance(tree, dict):
        found = {key: _gathered(value, keep) for key, value in tree.items()}
        return {key: value for key, value in found.items() if value is not None or tree[key] is None}
    return tree


def _write_shards(temporary: Path, weights: dict[str, dict[str, torch.Tensor]], state: dict[str, Any], ranks: Collectives) -> dict[str, Any]:
    """This rank's parts of sharded tensors. Returns the state without them."""
    shards: dict[str, torch.Tensor] = {}
    state = {**state, "trainables": taken_out(state["trainables"], shards)} if "trainables" in state else state
    folders = {temporary / "weights" / name: tensors for name, tensors in weights.items() if any(map(is_sharded, tensors.values()))}
    for target, tensors in {**folders, **({temporary / "shards": shards} if shards else {})}.items():
        target.mkdir(exist_ok=True)
        _sync(write_shards(target, tensors, ranks.rank, ranks.world))
    return state


def _write_whole(temporary: Path, weights: dict[str, dict[str, torch.Tensor]], state: dict[str, Any], meta: dict[str, Any]) -> None:
    """What one rank holds alone."""
    for name, tensors in weights.items():
        if not any(map(is_sharded, tensors.values())):
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, temporary / "weights" / f"{name}.safetensors")
    torch.save(state, temporary / "state.pt")
    (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
    for path in sorted(temporary.rglob("*")):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _stored_weights(path: Path, name: str) -> Mapping[str, torch.Tensor | Rows]:
    """The weights of one network in a checkpoint; those that ranks wrote in parts are read later, as far as they are needed."""
    whole, parts = path / "weights" / f"{name}.safetensors", path / "weights" / name
    if whole.is_file():
        return load_file(whole)
    if not parts.is_dir():
        raise UserError(f"{path} holds no weights for {name}: it is damaged, or no checkpoint of this kind of run (run.start_from)")
    files = ShardFiles(parts)
    return {key: files.stored(key) for key in files.names()}


def load_weights(path: Path, networks: Mapping[str, torch.nn.Module]) -> None:
    """Load the trained weights of a checkpoint. Raises UserError when it has other networks or shapes."""
    for name, network in networks.items():
        try:
            tensors = _stored_weights(path, name)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from error
        own = dict(network.named_parameters())
        wrong = [key for key, value in tensors.items() if key not in own or shape_of(own[key]) != tuple(value.shape)]
        wrong += [key for key, value in own.items() if value.requires_grad and key not in tensors]
        if wrong:
            hint = "choose the model and peft options the checkpoint was made with"
            raise UserError(f"{path}: {len(wrong)} weights of {name} do not fit this model, e.g. {wrong[0]}: {hint}")
        try:
            for key, value in tensors.items():
                assign(own[key], value)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from error


def load_state(path: Path) -> dict[str, Any]:
    """Everything else of a checkpoint of this run (made by rlexp itself, so it may hold plain Python objects). Raises UserError for a damaged one."""
    try:
        state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=False)
        if (path / "shards").is_dir():
            files = ShardFiles(path / "shards")
            files.names()  # opens them
            state["trainables"] = put_back(state["trainables"], files)
        return state
    except Exception as error:  # whatever torch, zipfile or pickle make of a damaged file
        raise damaged(path, error) from error


def same_data(path: Path, saved: str, now: str) -> None:
    """Refuse to continue on other data: the order of tasks would not be the one the checkpoint stands in."""
    if saved != now:
        raise UserError(f"the data changed since {path.name} was saved: restore the old data, or start a new run with run.name=... run.start_from={path}")
