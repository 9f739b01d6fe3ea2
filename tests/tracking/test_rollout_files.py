"""rollouts/*.parquet."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS, LENGTH, Turn
from rlexp.tracking.rollouts import FIXED, write_rollouts


def example() -> list[Rollout]:
    """One rollout of two turns with a masked token, and one without any."""
    turns = [
        Turn(np.array([1, 2]), np.array([3, 4, 5]), np.array([-1.0, -2.0, -0.5], np.float32), EOS, version=6, trained=np.array([True, False, True])),
        Turn(np.array([1, 2, 3, 4, 5, 9]), np.array([7]), np.array([-0.25], np.float32), LENGTH, version=7),
    ]
    full = Rollout({"prompt": "1+1=", "answer": "2"}, (0, 12, "policy"), 1, turns=turns, prompt_text="1+1=", completion_text="2 \udcff", advantage=0.75)
    full.rewards, full.reward = {"exact_match": 1.0, "length": None}, 1.0
    full.extra = {"note": "fine", "score": 3, "parts": [1, "a"], "reward": "own"}
    empty = Rollout({"prompt": "x"}, (0, 13, "policy"), 0)
    empty.rewards = {"exact_match": None, "length": 0.5}
    return [full, empty]


@pytest.mark.rows("GRPO-242", "GRPO-247")
def test_columns(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, 10, "train", example())
    assert path == tmp_path / "rollouts" / "step_000010.parquet"
    table = pq.read_table(path)
    assert table.column_names == [*FIXED, "rewards/exact_match", "rewards/length", "note", "parts", "extra/reward", "score"]
    full, empty = table.to_pylist()
    assert json.loads(full["task"]) == {"prompt": "1+1=", "answer": "2"}
    assert (full["group"], full["index"], full["agent"], full["prompt"], full["completion"]) == ("0/12/policy", 1, "policy", "1+1=", "2 ?")
    assert (full["prompt_ids"], full["ids"], full["logprobs"], full["masks"]) == ([1, 2], [3, 4, 5, 7], [-1.0, -2.0, -0.5, -0.25], [True, False, True, True])
    assert (full["finish"], full["version"], full["reward"], full["advantage"]) == (LENGTH, 6, 1.0, 0.75)
    assert (full["rewards/exact_match"], full["rewards/length"]) == (1.0, None)
    assert (full["note"], full["score"], full["parts"], full["extra/reward"]) == ("fine", 3.0, '[1, "a"]', "own")
    assert (empty["ids"], empty["masks"], empty["version"], empty["reward"], empty["rewards/length"], empty["note"]) == ([], [], None, None, 0.5, None)


@pytest.mark.cases("S43")
def test_the_same_rollouts_give_the_same_bytes(tmp_path: Path) -> None:
    digests = {hashlib.sha256(write_rollouts(tmp_path / name, 3, "train", example()).read_bytes()).hexdigest() for name in ("a", "b")}
    assert len(digests) == 1
    other = example()
    other[0].advantage = 0.5
    assert hashlib.sha256(write_rollouts(tmp_path / "c", 3, "train", other).read_bytes()).hexdigest() not in digests


def test_a_file_is_replaced_whole_and_evaluations_have_their_own(tmp_path: Path) -> None:
    first = write_rollouts(tmp_path, 1, "train", example())
    assert write_rollouts(tmp_path, 1, "train", example()[:1]) == first
    assert pq.read_table(first).num_rows == 1
    assert write_rollouts(tmp_path, 1, "eval", example()).name == "eval_000001.parquet"
    assert sorted(path.name for path in first.parent.iterdir()) == ["eval_000001.parquet", "step_000001.parquet"]
    assert pq.read_table(write_rollouts(tmp_path, 2, "train", [])).num_rows == 0
