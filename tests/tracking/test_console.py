"""The console."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS, Turn
from rlexp.tracking.console import ConsoleLog, closing_lines, duration

METRICS = {"reward": 0.53125, "loss": 0.001, "completions/mean_length": 23.4, "entropy": 1.25, "perf/tokens_per_s": 812.4}


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), soft_wrap=True)
    log = ConsoleLog(200, 0, console)
    log.log(0, "eval", {"accuracy": 0.25, "reward": 0.3, "perf/evaluation_s": 2.0, "pass@4": 0.5})
    log.log(10, "train", METRICS)
    first, second = written(console).splitlines()
    assert first == "step 0: eval accuracy 0.25  reward 0.3  pass@4 0.5"
    assert second.startswith("step 10/200  reward 0.531  loss 0.001  length 23.4  entropy 1.25  tokens/s 812  accuracy 0.25  eta ")


def test_a_bar_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    log = ConsoleLog(200, 0, console)
    log.log(10, "train", METRICS)
    log.close()
    assert "10/200" in written(console) and "reward 0.531" in written(console)


@pytest.mark.rows("GRPO-244")
def test_completions_are_shown_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=120)
    turn = Turn(np.array([1]), np.array([2]), np.array([-1.0], np.float32), EOS)
    rollouts = [
        Rollout({}, (0, 0, "policy"), n, turns=[turn], prompt_text=f"prompt {n}", completion_text="[bold]not markup[/bold]", reward=1.0) for n in range(3)
    ]
    ConsoleLog(10, 0, console).completions(1, rollouts, 2)
    text = written(console)
    assert text.count("[bold]not markup[/bold]") == 2
    assert "prompt 1" in text and "prompt 2" not in text


def test_the_last_lines_say_what_was_learnt_where_it_is_and_what_to_try() -> None:
    summary = {
        "status": "finished",
        "steps": 150,
        "seconds": 200.4,
        "evaluation": {"start": {"accuracy": 0.34}, "end": {"accuracy": 0.95}, "best": {"accuracy": 0.97, "step": 125}},
    }
    lines = closing_lines(summary, Path("outputs/x"))
    assert lines[0] == "finished after 150 steps in 3:20"
    assert lines[1] == "held-out accuracy 0.340 -> 0.950 (best 0.970 at step 125)"
    assert "outputs/x" in lines[2]
    assert any("trainer.max_steps=300" in line for line in lines)
    stopped = closing_lines({"status": "preempted", "steps": 3, "seconds": 1.0}, Path("outputs/x"))
    assert stopped[-1] == "next: the same command continues it"


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.6, 61, 3723)] == ["0s", "1:00", "1:01", "1:02:03"]
