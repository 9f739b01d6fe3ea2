"""Successive halving: where the rungs are, who goes on, and what a second start does. Runs are made up: what they would log is known beforehand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlexp.config.errors import UserError
from rlexp.config.sweep import SweepConfig
from rlexp.launch.folder import RunFolder
from rlexp.launch.halving import Halving, rungs, settled_text
from rlexp.launch.jobs import Job, Result
from rlexp.records.sweep import stop_mark

TOTAL, EVERY = 60, 10


@pytest.mark.parametrize(
    ("jobs", "settings", "total", "every", "steps"),
    [
        (8, {}, 60, 10, [10, 20, 40]),
        (9, {"reduction": 3}, 90, 10, [10, 30]),
        (8, {"reduction": 4}, 60, 5, [15]),
        (100, {"reduction": 3}, 60, 10, [10, 30]),  # 81 times less than 60 steps is less than an evaluation; 90 is behind the end
        (8, {"min_steps": 30}, 60, 10, [30]),
        (8, {"min_steps": 2}, None, 1, [2, 4, 8]),
        (2, {}, 2, 1, [1]),
    ],
)
def test_rungs(jobs: int, settings: dict, total: int | None, every: int, steps: list[int]) -> None:
    assert rungs(SweepConfig(method="halving", **settings), jobs, total, every) == steps


@pytest.mark.parametrize(
    ("jobs", "settings", "total", "every", "message"),
    [
        (2, {"reduction": 3}, 60, 10, "sweep.reduction=3 lets one run in 3 go on, and the sweep has 2"),
        (8, {}, None, 10, "set trainer.max_steps, or sweep.min_steps"),
        (8, {"min_steps": 15}, 60, 10, "sweep.min_steps=15 is no multiple of evaluation.steps=10"),
        (8, {"min_steps": 60}, 60, 10, "the first rung, step 60, is not before the last step, trainer.max_steps=60"),
        (8, {}, 60, 60, "the first rung, step 60, is not before the last step"),
    ],
)
def test_no_rungs(jobs: int, settings: dict, total: int | None, every: int, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        rungs(SweepConfig(method="halving", **settings), jobs, total, every)


@dataclass
class Machine:
    """Runs made-up jobs: job N has accuracy `curves[N](step)`. Keeps what it ran."""

    curves: dict[int, object]
    fails_at: dict[int, int] = field(default_factory=dict)
    preempted: set[int] = field(default_factory=set)
    ran: list[list[tuple[int, int]]] = field(default_factory=list)

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        pauses = [int(job.command[-1].removeprefix("sweep.pause_at=")) if "pause_at" in job.command[-1] else TOTAL for job in jobs]
        self.ran.append([(job.number, until) for job, until in zip(jobs, pauses, strict=True)])
        return [self._run(job, until) for job, until in zip(jobs, pauses, strict=True)]

    def _run(self, job: Job, until: int) -> Result:
        folder = RunFolder(job.folder)
        begun = folder.saved_step or 0
        if job.number in self.preempted:
            self.preempted.remove(job.number)
            folder.path.mkdir(exist_ok=True)
            folder.write_status("preempted", reason="stopped by SIGTERM")
            return Result(job, "preempted", "stopped by SIGTERM")
        fails = self.fails_at.get(job.number, until + 1)
        (folder.checkpoints_path).mkdir(parents=True, exist_ok=True)
        with open(folder.metrics_path, "a") as file:
            for step in range(begun + EVERY, min(until, fails - 1) + 1, EVERY):
                file.write(json.dumps({"step": step, "split": "eval", "accuracy": self.curves[job.number](step)}) + "\n")  # type: ignore[operator]
                (folder.checkpoints_path / f"step_{step:06d}").mkdir()
        if fails <= until:
            folder.write_status("failed", reason="ValueError: nan")
            return Result(job, "failed", "ValueError: nan")
        folder.write_summary({"steps": until})
        state = "finished" if until == TOTAL else "paused"
        folder.write_status(state, reason=None if state == "finished" else f"paused at step {until} by the sweep")
        return Result(job, state)


def jobs_in(folder: Path, count: int = 8) -> list[Job]:
    return [Job((f"run.seed={n}",), ("python", f"run.seed={n}"), folder / f"seed{n}", f"run.seed={n}", n) for n in range(1, count + 1)]


def halving(**settings: object) -> Halving:
    chosen = SweepConfig(method="halving", **settings)  # type: ignore[arg-type]
    return Halving(chosen, rungs(chosen, 8, TOTAL, EVERY))


CURVES = {number: (lambda step, number=number: number / 10 + step / 1000) for number in range(1, 9)}
"""job 8 is always the best"""


def test_the_best_half_goes_on_and_a_second_start_does_nothing(tmp_path: Path) -> None:
    jobs, machine, said = jobs_in(tmp_path), Machine(CURVES), []
    results, started = halving().run(jobs, machine, said.append)
    assert machine.ran == [[(n, 10) for n in range(1, 9)], [(n, 20) for n in (5, 6, 7, 8)], [(7, 40), (8, 40)], [(8, 60)]]
    assert [result.state for result in results] == ["paused"] * 7 + ["finished"] and started == 8
    assert said[1] == "step 10: of 8, 4 go on, accuracy 0.51 or better: job 8, 7, 6, 5"
    reason = "paused at step 10 by the sweep: not promoted at step 10 (accuracy 0.11, place 8 of 8, 4 go on)"
    assert results[0].reason == RunFolder(jobs[0].folder).status()["reason"] == reason
    assert (
        RunFolder(jobs[6].folder)
        .status()["reason"]
        .startswith("paused at step 40 by the sweep: not promoted at step 40 (accuracy 0.74, place 2 of 2, 1 goes on)")
    )
    assert halving().summary(jobs, TOTAL) == "best: job 8, run.seed=8, accuracy 0.86; 180 of 480 steps trained"
    record = json.loads((tmp_path / "halving.json").read_text())
    assert [(rung["step"], rung["promoted"]) for rung in record["rungs"]] == [
        (10, ["seed8", "seed7", "seed6", "seed5"]),
        (20, ["seed8", "seed7"]),
        (40, ["seed8"]),
    ]
    assert list(record["rungs"][0]["values"].values()) == sorted(record["rungs"][0]["values"].values(), reverse=True)

    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    again = Machine(CURVES)
    results, started = halving().run(jobs, again, said.append)
    assert again.ran == [] and settled_text(8, started) == "8 settled earlier, 0 run"
    assert [result.state for result in results] == ["paused"] * 7 + ["finished before"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_curves_that_cross_and_ties(tmp_path: Path) -> None:
    curves = {**{n: (lambda step: 0.5) for n in range(1, 9)}, 6: lambda step: 0.6 - step / 100, 7: lambda step: step / 60}
    machine = Machine(curves)
    halving().run(jobs_in(tmp_path), machine, lambda line: None)
    assert machine.ran[1] == [(1, 20), (2, 20), (3, 20), (4, 20)], "of equal ones the earlier; 6 is at 0.5 too, 7 behind all though it would end best"


def test_the_smallest_may_be_the_best(tmp_path: Path) -> None:
    machine = Machine(CURVES)
    halving(mode="min", reduction=4).run(jobs_in(tmp_path), machine, lambda line: None)
    assert machine.ran == [[(n, 20) for n in range(1, 9)], [(1, 60), (2, 60)]]


def test_failed_and_stopped_runs_take_no_part(tmp_path: Path) -> None:
    jobs, machine = jobs_in(tmp_path), Machine(CURVES, fails_at={8: 5})
    stop_mark(jobs[6].folder).parent.mkdir()
    stop_mark(jobs[6].folder).touch()
    results, started = halving().run(jobs, machine, lambda line: None)
    assert machine.ran[0] == [(n, 10) for n in (1, 2, 3, 4, 5, 6, 8)] and machine.ran[1] == [(4, 20), (5, 20), (6, 20)], "six are compared"
    assert [result.state for result in results] == ["paused"] * 5 + ["finished", "stopped", "failed"] and started == 7

    machine = Machine(CURVES)  # what made it fail is repaired
    results, started = halving().run(jobs, machine, lambda line: None)
    assert machine.ran == [[(8, 10)], [(8, 20)], [(8, 40)], [(8, 60)]]
    assert (results[7].state, results[5].state) == ("finished", "finished before") and started == 1


def test_interrupted_it_continues_where_it_was(tmp_path: Path) -> None:
    jobs, machine = jobs_in(tmp_path), Machine(CURVES, preempted={6})
    results, _ = halving().run(jobs, machine, lambda line: None)
    assert len(machine.ran) == 1 and results[5].state == "preempted", "a rung that is not complete decides nothing"
    machine.ran.clear()
    results, started = halving().run(jobs, machine, lambda line: None)
    assert machine.ran[0] == [(6, 10)] and machine.ran[1] == [(n, 20) for n in (5, 6, 7, 8)] and results[7].state == "finished" and started == 4


def test_stop_on_failure(tmp_path: Path) -> None:
    machine = Machine(CURVES, fails_at={1: 5})
    results, _ = halving(stop_on_failure=True).run(jobs_in(tmp_path), machine, lambda line: None)
    assert len(machine.ran) == 1 and results[0].state == "failed"


def test_a_metric_that_is_missing_is_no_reason_to_go_on(tmp_path: Path) -> None:
    jobs, machine = jobs_in(tmp_path), Machine({**CURVES, 8: lambda step: None})
    halving().run(jobs, machine, lambda line: None)
    assert machine.ran[1] == [(n, 20) for n in (5, 6, 7)]
    assert RunFolder(jobs[7].folder).status()["reason"] == "paused at step 10 by the sweep: not promoted at step 10 (no accuracy in its evaluation there)"
    with pytest.raises(UserError, match=r"^no run has sweep\.metric=rewrd in its evaluation at step 10"):
        halving(metric="rewrd").run(jobs, machine, lambda line: None)
