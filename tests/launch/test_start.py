"""Whole runs through the command line: how they end, what they leave, and how they go on."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nursery import SPAWN
from programs import TESTS, Done, Programs
from tracker_fakes import FAKE_WANDB

from rlexp.launch.lock import is_alive

SMALL = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=2", "reward=[digits]", "run.name=r"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "algorithm.num_generations=4", "optimizer.schedule=constant"),
    *("trainer.tokens_per_microbatch=200", "checkpoint.steps=2"),
]
LONG = "trainer.max_steps=100000"


class Cli:
    """`python -m rlexp.train` in a folder of its own."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs, self.folder, self.run = programs, folder, folder / "r"

    def train(self, *overrides: str, **env: str) -> Done:
        return self.programs.train(*SMALL, *overrides, cwd=self.folder, env={"RLEXP_OUTPUTS": str(self.folder), **env})

    def interrupted(self, number: signal.Signals, *overrides: str, steps: int = 3) -> Done:
        """A run that gets a signal once it has logged so many steps more than there were."""
        done: list[Done] = []
        wanted = self.lines() + steps
        thread = threading.Thread(target=lambda: done.append(self.train(*overrides)))
        thread.start()
        wait_for(lambda: self.lines() >= wanted)
        os.kill(self.programs.pid, number)
        thread.join(60)
        return done[0]

    def lines(self) -> int:
        path = self.run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def status(self) -> dict:
        return json.loads((self.run / "status.json").read_text())

    def steps(self) -> list[int]:
        lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if line["split"] == "train"]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def cli(programs: Programs, tmp_path: Path) -> Cli:
    return Cli(programs, tmp_path)


def test_finished_refused_continued(cli: Cli) -> None:
    first = cli.train("trainer.max_steps=2")
    assert first.code == 0, first.err
    files = {path.name for path in cli.run.iterdir()}
    expected = {"config.yaml", "overrides.txt", "status.json", "metrics.jsonl", "rollouts", "checkpoints", "model", "summary.json", "report.html", "train.log"}
    assert expected <= files and "lock" not in files
    assert cli.status()["status"] == "finished" and 'class="badge finished"' in (cli.run / "report.html").read_text()
    last = first.out.splitlines()[-6:]
    assert (
        last[0].startswith("finished after 2 steps")
        and last[1].startswith("held-out accuracy ")
        and last[2].startswith("run folder r (")
        and "rlexp.evaluate run=r" in last[3]
    )

    again = cli.train("trainer.max_steps=2")
    assert again.code == 0 and again.out.startswith("r is finished (2 steps")
    refused = cli.train("trainer.max_steps=2", "loss.epsilon=0.3", "run.seed=7")
    assert refused.code == 1 and "loss.epsilon: 0.2 -> 0.3" in refused.err and "run.seed: 42 -> 7" in refused.err and "Traceback" not in refused.err
    longer = cli.train("trainer.max_steps=4")
    assert longer.code == 0 and cli.steps() == [1, 2, 3, 4] and cli.status()["status"] == "finished"


def test_a_signal_leaves_a_run_that_continues(cli: Cli) -> None:
    stopped = cli.interrupted(signal.SIGUSR2, LONG)
    assert stopped.code == 75, stopped.err
    done = cli.steps()[-1]
    assert cli.status()["status"] == "preempted" and cli.status()["reason"] == "stopped by SIGUSR2"
    assert not (cli.run / "lock").exists() and json.loads((cli.run / "checkpoints" / "latest" / "meta.json").read_text())["step"] == done
    assert cli.train(f"trainer.max_steps={done + 1}").code == 0
    assert cli.steps() == list(range(1, done + 2))


@pytest.mark.cases("S42")
def test_kill_9_leaves_a_run_that_continues(cli: Cli) -> None:
    for _ in range(2):
        killed = cli.interrupted(signal.SIGKILL, LONG, steps=5)
        assert killed.code == -9
        assert cli.status()["status"] == "running" and not is_alive(cli.status()["pid"])
    checkpoint = json.loads((cli.run / "checkpoints" / "latest" / "meta.json").read_text())["step"]
    assert cli.train(f"trainer.max_steps={checkpoint + 3}", "run.resume=must").code == 0
    assert cli.steps() == list(range(1, checkpoint + 4))


def test_what_a_failure_leaves(cli: Cli) -> None:
    (cli.folder / "my_rewards.py").write_text(
        "def broken(completions, trainer_state, **kwargs):\n    raise ValueError('no score at %d' % trainer_state.global_step)\n"
    )
    overrides = ["reward=[custom]", "reward.terms.custom.path=my_rewards.py:broken", "evaluation=none", "trainer.max_steps=2"]
    failed = cli.train(*overrides)
    status = cli.status()
    assert failed.code == 1 and status["status"] == "failed" and "no score at 0" in status["reason"], failed.err
    assert "no score at 0" in failed.err.splitlines()[-1]
    log = (cli.run / "train.log").read_text()
    assert "Traceback" in log and "in broken" in log and not (cli.run / "lock").exists()


def test_two_processes_one_of_which_is_killed(cli: Cli) -> None:
    done: list[Done] = []
    thread = threading.Thread(target=lambda: done.append(cli.train(LONG, "strategy=ddp", "cluster.processes_per_node=2", **{SPAWN: "1"})))
    thread.start()
    wait_for(lambda: cli.lines() >= 3, 90)
    children = [int(pid) for pid in Path(f"/proc/{cli.programs.pid}/task/{cli.programs.pid}/children").read_text().split()]
    assert len(children) == 2
    rank_one = next(pid for pid in children if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    os.kill(rank_one, signal.SIGKILL)
    killed = time.monotonic()
    thread.join(60)
    assert time.monotonic() - killed < 20 and done[0].code == 1
    assert cli.status()["status"] == "failed" and cli.status()["reason"] == "rank 1 was killed by SIGKILL (out of memory?)"
    assert "rank 1 was killed by SIGKILL" in done[0].err and not any(is_alive(pid) for pid in children)


@pytest.mark.cases("S56")
def test_a_failing_tracker_does_not_fail_the_run(cli: Cli) -> None:
    fake = cli.folder / "fake"
    fake.mkdir()
    (fake / "wandb.py").write_text(FAKE_WANDB)
    env = {"RLEXP_OUTPUTS": str(cli.folder), "FAKE_WANDB_CALLS": str(cli.folder / "calls.jsonl")}
    env |= {
        "FAKE_WANDB_PLAN": json.dumps({"log 2": "raise", "log 3": 60, "finish": "raise"}),
        "PYTHONPATH": os.pathsep.join([str(fake), str(TESTS), str(TESTS / "contracts" / "plugin")]),
    }
    started = time.monotonic()
    done = cli.programs.train(*SMALL, "trainer.max_steps=5", "tracker=[wandb]", "tracker.timeout=2", cwd=cli.folder, env=env)
    assert time.monotonic() - started < 30
    assert done.code == 0 and cli.status()["status"] == "finished" and cli.steps() == [1, 2, 3, 4, 5], done.err
    warnings = [line for line in done.err.splitlines() if line.startswith("warning: tracker wandb")]
    assert len(warnings) == len(set(warnings)) == 3
