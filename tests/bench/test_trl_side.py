"""TRL's side, where TRL is installed: it repeats rlexp's rollouts, gets the same gradient, and its counts add up."""

from __future__ import annotations

import dataclasses
from multiprocessing import Pipe
from pathlib import Path

import pytest
from bench.sides import running

from scripts.bench import side_rlexp, side_trl
from scripts.bench.figures import same_gradient
from scripts.bench.prepare import prepare
from scripts.bench.workloads import Workload


@pytest.mark.parametrize("changes", [{"beta": 0.04, "iterations": 2}, {"lora_rank": 2}], ids=["kl and two passes", "lora"])
def test_the_gradients_agree(changes: dict[str, object], small: Workload, inputs: Path, tmp_path: Path) -> None:
    workload = dataclasses.replace(small, **changes)
    if "lora_rank" in changes:
        inputs = tmp_path / "inputs"
        prepare(workload, inputs)
    with running(side_rlexp.main, workload, inputs, tmp_path, (), True) as turn:
        ours = turn()
    with running(side_trl.main, workload, inputs, tmp_path, 4, True) as turn:
        first, second = turn(), turn()
    assert same_gradient(first, cuda=False) and first["cosine"] > 0.999999
    assert first["trained"] == ours["trained"] and "cosine" not in second
    assert second["micro_batches"] == 2 * workload.iterations
    width = second["forwarded"] / workload.rollouts / workload.iterations
    assert workload.prompt_tokens < width <= workload.prompt_tokens + workload.max_new
    assert second["generated"] * workload.iterations == second["trained"]
    assert 0 < second["generation"] < second["step"] and 0 < second["update"] < second["step"]


def test_the_search_tries_every_size(small: Workload, inputs: Path, tmp_path: Path) -> None:
    with running(side_rlexp.main, small, inputs, tmp_path, (), True) as turn:
        turn()
    ours, theirs = Pipe()
    side_trl.search(theirs, small, inputs, tmp_path)
    found = [ours.recv() for _ in small.trl_batches]
    assert [size for size, _ in found] == [4, 8] and all(seconds > 0 for _, seconds in found)


def test_trials_are_padded_to_the_longest() -> None:
    completions = [[1, 2], [3], [4] * 5]
    assert side_trl.padded(completions, 2) == [[1, 2, 1, 2, 1], [3]]
    assert side_trl.padded(completions, 3) == completions
