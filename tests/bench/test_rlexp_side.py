"""rlexp's side runs its own loop in turns, and what it records adds up."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.sides import running
from safetensors import safe_open

from scripts.bench import side_rlexp
from scripts.bench.recorder import Memory, Recorder, Stop
from scripts.bench.reward import spread
from scripts.bench.workloads import Workload


def test_batches_in_turns(small: Workload, inputs: Path, tmp_path: Path) -> None:
    with running(side_rlexp.main, small, inputs, tmp_path, (), True) as turn:
        first, second = turn(), turn()
    for record in (first, second):
        assert 0 < record["generation"] < record["step"] and 0 < record["update"] < record["step"]
        assert record["generated"] == record["trained"]
        assert record["forwarded"] < small.rollouts * small.prompt_tokens + record["generated"]  # a prompt counts once for its group
        assert record["pairs"] >= record["forwarded"]
    completions = np.load(tmp_path / "completions.npz")
    assert completions["lengths"].sum() == len(completions["ids"]) == first["generated"]
    with safe_open(tmp_path / "gradient.safetensors", framework="pt") as saved:
        assert "lm_head.weight" in saved.keys() and float(saved.get_tensor("lm_head.weight").abs().sum()) > 0  # noqa: SIM118


def test_rewards_differ() -> None:
    assert spread([[1, 2], [1, 3]]) == spread(completion_ids=[[1, 2], [1, 3]], prompts=["a", "b"])
    assert len(set(spread([[1], [2], [1, 2]]))) == 3 and all(0 <= value < 1 for value in spread([[1], [2], [1, 2]]))


def test_memory_is_the_peak_since_the_reset() -> None:
    memory = Memory()
    megabytes = torch.ones(64, 2**18)
    del megabytes
    memory.reset()
    if memory.cuda:
        pytest.skip("of the resident set")
    megabytes = torch.ones(32, 2**18)
    assert 20 * 2**20 < memory.peak < 80 * 2**20
    del megabytes


def test_a_recorder_waits_for_its_turn(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    recorder = Recorder(theirs)
    turns: list[str] = []

    def loop() -> None:
        recorder.ready(parameters=3)
        try:
            while True:
                recorder.arrive()
                turns.append("batch")
                recorder.rewarded()
                for _ in range(2):
                    recorder.optimized()
                    recorder.count("trained", 5)
        except Stop:
            turns.append("stopped")

    thread = threading.Thread(target=loop)
    thread.start()
    assert ours.recv() == {"parameters": 3} and turns == []
    ours.send("step")
    assert ours.recv()["trained"] == 10 and turns == ["batch"]
    ours.send(("profile", tmp_path / "profile.txt"))
    assert ours.recv()["trained"] == 10
    ours.send("stop")
    thread.join(10)
    assert turns == ["batch", "batch", "stopped"] and "shares count" in (tmp_path / "profile.txt").read_text()
