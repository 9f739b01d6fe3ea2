"""Rows of tensors: where they belong, on disk and back, in any number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cluster.world import in_worlds
from programs import Programs

from rlexp.distributed.shards import assign, extent, part_of, shaped_like, whole
from rlexp.training.shard_files import ShardFiles, put_back, taken_out, write_shards

SHAPES = {"matrix": (7, 3), "vector": (5,), "short": (1, 4), "flat": (4, 2)}
"""cut unevenly, and shorter than there are ranks"""


def values(name: str) -> torch.Tensor:
    count = torch.Size(SHAPES[name]).numel()
    return (torch.arange(count, dtype=torch.float64) + len(name)).reshape(SHAPES[name])


def test_whole_tensors_are_as_they_are() -> None:
    tensor = values("matrix")
    assert extent(tensor) == (0, 7) and extent(torch.tensor(1.0)) == (0, 0)
    assert whole(tensor) is not tensor and torch.equal(whole(tensor), tensor)
    assert torch.equal(part_of(tensor, torch.zeros(7, 3)), tensor) and torch.equal(shaped_like(tensor, torch.zeros(7, 3)), tensor)
    target = torch.zeros(7, 3)
    assign(target, tensor)
    assert torch.equal(target, tensor.float())


def write(folder: str) -> None:
    """A rank of three or two writes its rows."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    made = {name: distribute_tensor(values(name), mesh, [Shard(0)]) for name in SHAPES}
    for name, tensor in made.items():
        start, stop = extent(tensor)
        assert torch.equal(tensor.to_local(), values(name)[start:stop]) and torch.equal(whole(tensor), values(name))
        other = distribute_tensor(torch.zeros(SHAPES[name], dtype=torch.float64), mesh, [Shard(0)])
        assert torch.equal(whole(shaped_like(values(name), other)), values(name))
        for value in (values(name), tensor):
            other.to_local().zero_()
            assign(other, value)
            assert torch.equal(whole(other), values(name))
        plain = torch.zeros(SHAPES[name])
        assign(plain, tensor)
        assert torch.equal(plain, values(name).float())
    old = Path(folder) / "old"
    if old.is_dir():
        for name, tensor in made.items():
            tensor.to_local().zero_()
            assign(tensor, ShardFiles(old).stored(name))
            assert torch.equal(whole(tensor), values(name))
    write_shards(Path(folder), made, rank, world)
    dist.barrier()
    dist.destroy_process_group()


def test_rows_of_three_ranks_are_read_by_two_and_by_one(programs: Programs, tmp_path: Path) -> None:
    three, two = tmp_path / "three", tmp_path / "two"
    two.mkdir()
    (two / "old").symlink_to(three)
    three.mkdir()
    jobs = [{"world": world, "call": "distributed.test_shards:write", "arguments": [str(folder)]} for world, folder in ((3, three), (2, two))]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    for folder in (three, two):
        files = ShardFiles(folder)
        assert files.names() == list(SHAPES)
        for name, shape in SHAPES.items():
            stored = files.stored(name)
            assert stored.shape == shape and torch.equal(stored.read(0, shape[0]), values(name))
            target = torch.zeros(shape)
            assign(target, stored)
            assert torch.equal(target, values(name).float())
        assert torch.equal(files.read("matrix", 2, 6), values("matrix")[2:6]) and files.read("matrix", 7, 7).shape == (0, 3)
    next(three.glob("00001-*")).unlink()
    with pytest.raises(OSError, match="2 of 3 files"):
        ShardFiles(three).names()


def test_a_structure_without_shards_stays_as_it_is() -> None:
    tree = {"a": [1, (2, torch.ones(2))], "b": {"c": None}}
    shards: dict[str, torch.Tensor] = {}
    kept = taken_out(tree, shards)
    assert shards == {} and kept["a"][1][1] is tree["a"][1][1] and put_back(kept, ShardFiles(Path("unused")))["b"] == {"c": None}
