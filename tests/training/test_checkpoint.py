"""Checkpoints are complete or absent; retention counts steps as numbers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from rlexp.config.errors import UserError
from rlexp.training import checkpoint


def network() -> nn.Module:
    return nn.Linear(2, 3, bias=False)


def save(folder: Path, step: int, value: float = 1.0) -> Path:
    return checkpoint.save(folder, step, {"policy": {"weight": torch.full((3, 2), value)}}, {"anything": step}, {"version": step})


@pytest.mark.cases("S41")
@pytest.mark.parametrize("names", [("step_999990", "step_1000000"), ("step_1000000", "step_999990")])
def test_the_newest_is_the_largest_number(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert checkpoint.latest(tmp_path) == tmp_path / "step_1000000"
    checkpoint.retain(tmp_path, 1, [])
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step_1000000"]


@pytest.mark.cases("S41")
def test_latest_points_to_the_newest_and_old_ones_go_only_after_it_is_complete(tmp_path: Path) -> None:
    save(tmp_path, 999990)
    save(tmp_path, 1000000)
    assert os.readlink(tmp_path / "latest") == "step_1000000"
    checkpoint.retain(tmp_path, 1, [])
    assert checkpoint.load_state(tmp_path / "latest")["anything"] == 1000000


def test_best_checkpoints_are_kept_beside_the_newest(tmp_path: Path) -> None:
    for step in range(1, 7):
        save(tmp_path, step)
    checkpoint.retain(tmp_path, 2, [3])
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path)] == [3, 5, 6]


def test_a_full_disk_leaves_the_old_checkpoint_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(UserError, match=r"no space left.*checkpoint\.keep_last"):
        save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_000001"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step_000001"


def test_an_unfinished_write_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / ".writing-step_000002" / "weights").mkdir(parents=True)
    assert checkpoint.latest(tmp_path) == tmp_path / "step_000001"
    save(tmp_path, 2)
    assert not (tmp_path / ".writing-step_000002").exists()


def test_weights_of_another_model_are_refused_with_the_key(tmp_path: Path) -> None:
    path = save(tmp_path, 1, 7.0)
    module = network()
    checkpoint.load_weights(path, {"policy": module})
    assert torch.equal(module.weight, torch.full((3, 2), 7.0))
    with pytest.raises(UserError, match=r"1 weights of policy do not fit.*weight"):
        checkpoint.load_weights(path, {"policy": nn.Linear(5, 3, bias=False)})
    with pytest.raises(UserError, match=r"1 weights of policy do not fit.*bias"):
        checkpoint.load_weights(path, {"policy": nn.Linear(2, 3)})
    with pytest.raises(UserError, match=r"no weights for critic.*run\.start_from"):
        checkpoint.load_weights(path, {"critic": module})
