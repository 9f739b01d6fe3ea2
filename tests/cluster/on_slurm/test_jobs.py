"""Sweeps as Slurm jobs: an array, without waiting, and the ways a job can go wrong. There is no accounting (sacct) in this Slurm."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from run_folders import status
from slurm_here import Slurm, Sweep, until

Tell = Callable[[str], None]
RAISING = """
def score(completions, trainer_state, seed, **kwargs):
    if seed == 2 and trainer_state.training:
        raise ValueError("seed two")
    return [float(len(text[-1]["content"])) for text in completions]
"""


@pytest.mark.rows("GRPO-177")
@pytest.mark.cases("S37")
def test_a_sweep_is_one_array_and_is_found_again(slurm: Slurm, tmp_path: Path, tell: Tell) -> None:
    """Over seeds and lists, with a path that holds the characters which submitit and Slurm take for their own."""
    tasks = tmp_path / "runs" / "a=b.jsonl"
    tasks.parent.mkdir()
    tasks.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(8)))
    files = ["data=files", 'data.path="runs/a=b.jsonl"', "data.eval_size=0", "reward=[digits],[digits,exact_match]"]
    sweep = Sweep(slurm, tmp_path, "trainer.max_steps=2", "evaluation=none", "run.seed=1,2", *files)
    code, out, err = sweep.run()
    assert code == 0, out + err + sweep.logs()
    assert out.endswith("\n4 finished, 0 failed\n") and len(sweep.runs) == 4
    jobs = {status(run)["slurm_job"] for run in sweep.runs}
    assert len({job.partition("_")[0] for job in jobs}) == 1 and {job.partition("_")[2] for job in jobs} == {"0", "1", "2", "3"}
    tell("a 4-job sweep as an array, 4/4 finished")

    terms = sorted(len(yaml.safe_load((run / "config.yaml").read_text())["reward"]["terms"]) for run in sweep.runs)
    assert terms == [1, 1, 2, 2] and all(re.fullmatch(r"[A-Za-z0-9._=-]{1,120}", run.name) for run in sweep.runs)
    logs = sorted(path.stem for path in (sweep.path / "logs").iterdir())
    assert logs == sorted(run.name for run in sweep.runs), "the layout of a sweep on this machine"
    again = sweep.run()
    assert again[0] == 0 and "0 jobs submitted, 0 in the queue before, 4 settled before" in again[1] and again[1].endswith("\n4 finished, 0 failed\n")


def test_without_waiting(slurm: Slurm, tmp_path: Path, tell: Tell) -> None:
    sweep = Sweep(slurm, tmp_path, "trainer.max_steps=3", "evaluation=none", "run.seed=1,2")
    began = time.monotonic()
    code, out, err = sweep.run("cluster.wait=false")
    seconds = time.monotonic() - began
    assert code == 0, out + err
    ids = re.findall(r"^  job \d+: (\d+_\d)  run.seed=\d$", out, re.MULTILINE)
    assert len(ids) == 2 and slurm.state(ids[0]) in ("PENDING", "RUNNING", "COMPLETING", "COMPLETED")
    assert seconds < 10 or os.getloadavg()[0] > os.cpu_count(), f"{seconds:.1f} s on an idle machine"  # type: ignore[operator]
    tell(f"wait=false back after {seconds:.1f} s with job ids {' '.join(ids)}")

    code, out, err = sweep.run()
    assert code == 0 and out.startswith("0 jobs submitted, ") and out.endswith("\n2 finished, 0 failed\n"), out + err + sweep.logs()
    assert sorted(status(run)["slurm_job"] for run in sweep.runs) == ids, "the jobs in the queue were waited for, not submitted again"


@pytest.mark.cases("S38")
def test_a_job_that_raises(slurm: Slurm, tmp_path: Path, tell: Tell) -> None:
    (tmp_path / "my_rewards.py").write_text(RAISING)
    reward = ["reward=[custom]", "reward.terms.custom.path=my_rewards.py:score", "+reward.terms.custom.kwargs.seed='${run.seed}'"]
    sweep = Sweep(slurm, tmp_path, *reward, "trainer.max_steps=2", "evaluation=none", "run.seed=1,2,3")
    code, out, err = sweep.run()
    assert code == 1 and out.endswith("\n2 finished, 1 failed\n"), out + err + sweep.logs()
    (failed,) = [run for run in sweep.runs if status(run)["status"] == "failed"]
    reason = status(failed)["reason"]
    assert "ValueError: seed two" in reason and reason.splitlines()[0] in err
    job = status(failed)["slurm_job"]
    assert slurm.state(job) == "FAILED", "Slurm knows it too"
    assert "seed two" in (sweep.path / "logs" / f"{failed.name}.log").read_text() and "Traceback" in (failed / "train.log").read_text()
    assert re.search(r"failed: .*run\.seed=2\b.*\n  .*seed two", err), "the overrides that reproduce it"
    said = re.search(r"ValueError: [a-z ]+", reason)
    assert said is not None
    tell(f"a job that raises reported failed: {said[0].strip().removesuffix(' at')}")


@pytest.mark.cases("S38")
def test_the_first_failure_empties_the_queue(slurm: Slurm, tmp_path: Path) -> None:
    """Two jobs fit at a time. The second fails, the first and the third that may have taken its place go on, the others never start."""
    (tmp_path / "my_rewards.py").write_text(RAISING)
    reward = ["reward=[custom,digits]", "reward.terms.custom.path=my_rewards.py:score", "+reward.terms.custom.kwargs.seed='${run.seed}'"]
    sweep = Sweep(slurm, tmp_path, *reward, "reward.terms.digits.sleep=2", "trainer.max_steps=4", "evaluation=none", "run.seed=1,2,3,4,5")
    code, out, err = sweep.run("sweep.stop_on_failure=true", "cluster.cpus_per_node=2")
    assert code == 1 and re.search(r"\n[12] finished, 1 failed, [23] not started\n$", out), out + err + sweep.logs()
    assert not [run for run in sweep.runs if run.name.endswith(("=4", "=5"))]
    code, out, err = sweep.run("sweep.stop_on_failure=true", "cluster.cpus_per_node=2", "cluster.wait=false")
    assert code == 1 and "sweep.stop_on_failure=true takes jobs out of the queue" in err


@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_that_dies_hard(slurm: Slurm, tmp_path: Path, tell: Tell, processes: int) -> None:
    more = [] if processes == 1 else ["strategy=ddp", "cluster.processes_per_node=2"]
    sweep = Sweep(slurm, tmp_path, "reward.terms.digits.sleep=0.3", "trainer.max_steps=500", "evaluation=none", *more).start()
    until(lambda: sweep.steps() >= 1, what=sweep.logs())
    os.kill(status(sweep.runs[0])["pid"], signal.SIGKILL)
    code, out, err = sweep.wait()
    assert code == 1 and out.endswith("\n0 finished, 1 failed\n"), out + err
    told = status(sweep.runs[0])
    assert told["status"] == "failed" and re.fullmatch(r"Slurm: FAILED \((\w+, )?exit code \d+\), job \d+", told["reason"]), told
    assert told["reason"] in err
    until(lambda: not slurm.leftovers(), 30, str(slurm.leftovers()))
    tell(f"a job of {processes} that dies hard reported failed with the scheduler's state")


def test_resources_that_no_node_has(slurm: Slurm, tmp_path: Path, tell: Tell) -> None:
    sweep = Sweep(slurm, tmp_path, "run.seed=1,2")
    code, out, err = sweep.run("cluster.gpus_per_node=64")
    assert code == 1 and "Traceback" not in err and out == "", out + err
    assert "Requested node configuration is not available" in err
    code, _, err = sweep.run("cluster.partition=nowhere")
    assert code == 1 and "Traceback" not in err and "invalid partition specified: nowhere" in err and not sweep.runs
    tell("impossible resources: Requested node configuration is not available")


def test_the_sweep_program_gives_up_waiting_and_the_jobs_go_on(slurm: Slurm, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "reward.terms.digits.sleep=0.5", "trainer.max_steps=60", "evaluation=none").start()
    until(lambda: sweep.steps() >= 1, what=sweep.logs())
    assert sweep.process is not None
    sweep.process.send_signal(signal.SIGINT)
    code, _, err = sweep.wait()
    assert code == 75 and "1 jobs go on without this program" in err
    code, out, err = sweep.run()
    assert code == 0 and "0 jobs submitted, 1 in the queue before" in out, out + err
    record = json.loads((sweep.path / "sweep.json").read_text())
    assert [info["reason"] for info in record.values()] == [""]
