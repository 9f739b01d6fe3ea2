"""Streams that are read one batch ahead: the same batches, read before they are asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from run_folders import final_weights, metrics
from small_runs import Cli

from rlexp.config.errors import UserError
from rlexp.data.tasks import TaskData, TaskOrder
from rlexp.rollout.ahead import ReadAhead

WAIT = 20.0
"""seconds; a deadline, never reached"""


class Stream:
    """Twenty tasks; says which have been read, and fails at one."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails = fails
        self.read = [threading.Event() for _ in range(20)]
        self.readers: set[str] = set()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, event in enumerate(self.read):
            if number == self.fails:
                raise UserError("the hub does not answer")
            event.set()
            self.readers.add(threading.current_thread().name)
            yield {"prompt": f"p{number}", "n": number}


def order(stream: Stream, shuffle: bool = True) -> TaskOrder:
    return TaskOrder(TaskData(stream, [], "print", shuffle_buffer=6), seed=5, shuffle=shuffle, prompts_per_batch=3)


@pytest.mark.parametrize("asked", [range(16), [4, 5, 6], [3, 3, 1, 2, 9]], ids=["on", "resumed", "back"])
def test_batches_and_epochs_are_those_of_the_order(asked: list[int]) -> None:
    plain, ahead = order(Stream()), ReadAhead(order(Stream()))
    for number in asked:
        assert ahead.batch(number) == plain.batch(number)
        assert ahead.epoch_of(number + 1) == plain.epoch_of(number + 1), "not the epoch of what was read ahead"


def test_a_resumed_run_knows_its_epoch_before_its_first_batch() -> None:
    whole, resumed = ReadAhead(order(Stream())), ReadAhead(order(Stream()))
    expected = [whole.batch(number) for number in range(9)]
    assert resumed.epoch_of(8) == 1.0 and resumed.batch(8) == expected[8]
    assert ReadAhead(order(Stream())).epoch_of(0) == 0.0


def test_the_next_batch_is_read_by_a_thread_before_it_is_asked_for() -> None:
    stream = Stream()
    ahead = ReadAhead(order(stream, shuffle=False))
    ahead.batch(0)
    assert stream.read[5].wait(WAIT) and stream.readers == {threading.current_thread().name, "next tasks"}
    assert [task["n"] for _, _, task in ahead.batch(1)] == [3, 4, 5]


def test_an_error_is_raised_when_its_batch_is_taken() -> None:
    ahead = ReadAhead(order(Stream(fails=4), shuffle=False))
    assert len(ahead.batch(0)) == 3 and ahead.epoch_of(1) == 0.0
    with pytest.raises(UserError, match="the hub does not answer"):
        ahead.batch(1)


def test_a_streamed_run_that_is_killed_and_resumed_is_the_same(programs: Any, tmp_path: Any) -> None:
    rows = "".join(json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) + "\n" for n in range(5))
    runs = []
    for name in ("whole", "killed"):
        cli = Cli(programs, tmp_path / name)
        (cli.folder / "data").mkdir(parents=True)
        (cli.folder / "data" / "train.jsonl").write_text(rows)
        options = ["data=hub", "data.path=data", "data.streaming=true", "data.shuffle_buffer=3", "data.eval_size=0", "evaluation=none", "trainer.max_steps=8"]
        if name == "killed":
            assert cli.train(*options, env={"RLEXP_FAULT": "5:backward:before"}).code == -9
        done = cli.train(*options)
        assert done.code == 0, done.err
        runs.append(cli.run)
    assert final_weights(runs[0]) == final_weights(runs[1]) and metrics(runs[0]) == metrics(runs[1])
    assert metrics(runs[0])[-1]["epoch"] >= 1
