"""Two processes of which one fails: all end within seconds, the culprit is named, and the run goes on as if nothing had been."""

from __future__ import annotations

import time

import pytest
from run_folders import metrics, status, train_steps
from small_runs import Cli

REWARD = """
import os

def score(completions, trainer_state, log_metric):
    if os.environ.get("RANK") == "1":
        log_metric("heard", 1.0)
        if os.environ.get("UNLUCKY") == str(trainer_state.global_step):
            raise ValueError("bad luck")
    return [float(len(set(text[-1]["content"]))) for text in completions]
"""


@pytest.mark.rows("GRPO-122")
@pytest.mark.cases("S52")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_one_of_two_processes_raises(cli: Cli, strategy: str) -> None:
    """A killed one: tests/launch/test_start.py. Only one process logs a metric, here in a run that goes on."""
    options = [*cli.rewards(REWARD), "trainer.steps_per_batch=1", "evaluation=none", "trainer.max_steps=3"]
    two = [f"strategy={strategy}", "strategy.timeout=60", "cluster.processes_per_node=2"]
    began = time.monotonic()
    done = cli.train(*options, *two, env={"UNLUCKY": "1"})
    assert done.code == 1 and "Traceback" not in done.err and "FutureWarning" not in done.err and time.monotonic() - began < 60, done.err
    told = status(cli.run)
    assert told["status"] == "failed" and told["reason"].startswith("rank 1: reward 'custom' raised ValueError: bad luck")
    assert done.err.splitlines()[-1] == f"error: {told['reason']}" and not (cli.run / "lock").exists()
    done = cli.train(*options, *two)
    assert done.code == 0 and train_steps(cli.run) == [1, 2, 3], done.err
    assert all(line["heard"] == 1.0 for line in metrics(cli.run))


BUG = """
import os

from rlexp.training.step import StepRunner

def broken(*_, **__):
    raise RuntimeError("nobody thought of this")

if os.environ.get("RANK") == "1":
    StepRunner.optimize = broken

def score(completions):
    return [float(len(set(text[-1]["content"]))) for text in completions]
"""


def test_a_bug_in_one_of_two_processes_is_shown_with_its_traceback(cli: Cli) -> None:
    """On the console of the run, though it is another rank than 0 that has it, and in status.json."""
    done = cli.train(*cli.rewards(BUG), "evaluation=none", "trainer.max_steps=3", "strategy=ddp", "strategy.timeout=60", "cluster.processes_per_node=2")
    assert done.code == 1 and "Traceback (most recent call last)" in done.err and ", in broken" in done.err, done.err
    assert "RuntimeError: nobody thought of this" in done.err and "rank 1" in status(cli.run)["reason"]
    assert status(cli.run)["status"] == "failed" and "RuntimeError: nobody thought of this" in (cli.run / "train.log").read_text()


def test_the_end_of_a_run_with_a_process_group_is_no_deadlock(cli: Cli) -> None:
    """Closing hung about every second time: gloo's threads and the destructor of DDP's reducer waited for each other."""
    assert cli.programs.run("program.closings", "12", cwd=cli.folder, timeout=60).code == 0
