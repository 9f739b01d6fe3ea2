"""Sharded tensors on disk: each rank writes the rows it holds, and any number of ranks can read them again.

FOLDER/00000-of-00002.safetensors holds the rows of rank 0 of 2; its header says where they belong: name -> [first row, whole shape].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlexp.distributed.shards import extent, is_sharded, own_part

PLACES = "rows"
"""key of a file's header"""


def write_shards(folder: Path, tensors: Mapping[str, Tensor], rank: int, world: int) -> Path:
    """Write this rank's rows of sharded tensors; returns the file."""
    path = folder / f"{rank:05d}-of-{world:05d}.safetensors"
    places = {name: [extent(tensor)[0], list(tensor.shape)] for name, tensor in tensors.items()}
    save_file({name: own_part(tensor).detach().cpu().contiguous() for name, tensor in tensors.items()}, path, {PLACES: json.dumps(places)})
    return path


class ShardFiles:
    """The tensors of a folder, whichever ranks wrote them. Raises OSError or SafetensorError where files are damaged or missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _files(self) -> list[tuple[Any, dict[str, Any]]]:
        """Each file, open, with its places."""
        paths = sorted(self.folder.glob("*-of-*.safetensors"))
        wanted = int(paths[0].stem.split("-of-")[1]) if paths else 1
        if len(paths) != wanted:
            raise OSError(f"{self.folder.name} has {len(paths)} of {wanted} files")
        files = [safe_open(path, "pt") for path in paths]
        return [(file, json.loads((file.metadata() or {})[PLACES])) for file in files]

    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._files[0][1])

    def stored(self, name: str) -> Stored:
        """One of them, unread."""
        return Stored(self, name, tuple(self._files[0][1][name][1]))

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Rows start to stop of one tensor, from as many files as hold some."""
        parts = []
        for file, places in self._files:
            rows = file.get_slice(name)
            first, count = places[name][0], rows.get_shape()[0]
            low, high = max(start, first), min(stop, first + count)
            if low < high:
                parts.append(rows[low - first : high - first])
        if not parts:
            file, _ = self._files[0]
            return file.get_tensor(name)[:0]
        return torch.cat(parts) if len(parts) > 1 else parts[0]


@dataclass
class Stored:
    """A tensor in files of shards, read when it is known which rows are needed (rlexp.distributed.shards.Rows)."""

    files: ShardFiles
    name: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Tensor:
        """Rows start to stop."""
        return self.files.read(self.name, start, stop)


@dataclass(frozen=True)
class Elsewhere:
    """Stands in a saved structure for a sharded tensor, which is in the files of shards under this name."""

    name: str


def taken_out(tree: Any, shards: dict[str, Tensor], name: str = "") -> Any:
    """The structure (dicts, lists, tuples) with its sharded tensors replaced by where they are, and moved to `shards`."""
    if isinstance(tree, Tensor) and is_sharded(tree):
        shards[name] = tree
        return Elsewhere(name)
    if isinstance(tree, dict):
        return {key: taken_out(value, shards, f"{name}/{key}") for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(taken_out(value, shards, f"{name}/{place}") for place, value in enumerate(tree))
    return tree


def put_back(tree: Any, files: ShardFiles) -> Any:
    """The structure with its sharded tensors in place, unread."""
    if isinstance(tree, Elsewhere):
        return files.stored(tree.name)
    if isinstance(tree, dict):
        return {key: put_back(value, files) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(put_back(value, files) for value in tree)
    return tree
