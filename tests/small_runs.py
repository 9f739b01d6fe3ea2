"""Whole runs of the smallest kind, through the command line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from programs import Done, Programs

SMALL = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=2", "reward=[digits]", "run.name=r"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "algorithm.num_generations=4", "trainer.steps_per_batch=2"),
    *("trainer.tokens_per_microbatch=60", "checkpoint.steps=1", "tracker.rollout_steps=1", "optimizer.learning_rate=0.01", "optimizer.schedule=constant"),
]
"""about a second"""


def options(base: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The base without what the overrides set, then those; a `data` option takes the base's data keys with it."""
    given = {override.partition("=")[0] for override in overrides}
    kept = [option for option in base if option.partition("=")[0] not in given]
    if "data" in given:
        kept = [option for option in kept if not option.startswith("data.")]
    return [*kept, *overrides]


class Cli:
    """Programs in a folder of their own, whose outputs are in `out`."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs, self.folder, self.out = programs, folder, folder / "out"

    @property
    def run(self) -> Path:
        """The folder of the run that SMALL names."""
        return self.out / "r"

    def options(self, *overrides: str) -> list[str]:
        """SMALL with overrides."""
        return options(SMALL, overrides)

    def train(self, *overrides: str, env: dict[str, str] | None = None) -> Done:
        """python -m rlexp.train with SMALL."""
        return self.programs.train(*self.options(*overrides), cwd=self.folder, env={"RLEXP_OUTPUTS": str(self.out), **(env or {})})

    def evaluate(self, *arguments: str) -> Done:
        """python -m rlexp.evaluate."""
        return self.programs.run("rlexp.evaluate", *arguments, cwd=self.folder, env={"RLEXP_OUTPUTS": str(self.out)})

    def rewards(self, text: str) -> list[str]:
        """Write my_rewards.py with a function `score` and return the overrides that choose it."""
        (self.folder / "my_rewards.py").write_text(text)
        return ["reward=[custom]", "reward.terms.custom.path=my_rewards.py:score"]

    def lines(self) -> int:
        """Lines of metrics.jsonl so far."""
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def struck(self, number: int, after: float, *overrides: str, lines: int = 2) -> Done:
        """A run that gets a signal `after` seconds after it has logged so many lines more than there were."""
        done: list[Done] = []
        before = self.lines()
        thread = threading.Thread(target=lambda: done.append(self.train(*overrides)))
        thread.start()
        wait_for(lambda: (self.lines() != before and self.lines() >= min(before, self.lines()) + lines) or not thread.is_alive())
        time.sleep(after)
        os.kill(self.programs.pid, number)
        thread.join(60)
        return done[0]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
