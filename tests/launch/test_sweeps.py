"""Whole sweeps through the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from programs import TESTS, Programs
from tracker_fakes import FAKE_WANDB

SMALL = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=2", "evaluation=none", "sweep.jobs=3"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=4", "algorithm.num_generations=4"),
    *("trainer.tokens_per_microbatch=200", "trainer.max_steps=2"),
]
REWARD = """
import os
from pathlib import Path

def careful(completions, seed, **kwargs):
    Path(f"gpus_of_{seed}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    if str(seed) == "2" and not Path("repaired").exists():
        raise ValueError("seed two")
    return [float(len(completion)) for completion in completions]
"""


@pytest.mark.rows("GRPO-280")
@pytest.mark.cases("S38", "S55")
def test_one_job_fails_and_the_same_command_finishes_the_sweep(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(REWARD)
    fake, calls = tmp_path / "fake", tmp_path / "calls.jsonl"
    fake.mkdir()
    (fake / "wandb.py").write_text(FAKE_WANDB)
    reward = ["reward=[custom]", "reward.terms.custom.path=my_rewards.py:careful", "+reward.terms.custom.kwargs.seed='${run.seed}'"]
    command = ["-m", *SMALL, *reward, "tracker=[wandb]", "sweep.name=mine", "run.seed=1,2,3"]
    env = {
        "RLEXP_OUTPUTS": str(tmp_path / "out"),
        "FAKE_WANDB_CALLS": str(calls),
        "CUDA_VISIBLE_DEVICES": "7,8,9",
        "PYTHONPATH": os.pathsep.join([str(fake), str(TESTS), str(TESTS / "contracts" / "plugin")]),
    }

    first = programs.train(*command, cwd=tmp_path, env=env)
    assert first.code == 1, first.err
    sweep = tmp_path / "out" / "sweeps" / "mine"
    folders = {info["overrides"][-1]: sweep / name for name, info in json.loads((sweep / "sweep.json").read_text()).items()}
    statuses = {seed: json.loads((folder / "status.json").read_text()) for seed, folder in folders.items()}
    assert {seed: status["status"] for seed, status in statuses.items()} == {"run.seed=1": "finished", "run.seed=2": "failed", "run.seed=3": "finished"}
    assert "seed two" in statuses["run.seed=2"]["reason"]
    second_log = (sweep / "logs" / f"{folders['run.seed=2'].name}.log").read_text()
    assert "Traceback" in (folders["run.seed=2"] / "train.log").read_text() and "seed two" in second_log
    assert re.search(r"failed: .*run\.seed=2\n  .*seed two", first.err) and "run.seed=1\n" not in first.err
    assert sorted((tmp_path / f"gpus_of_{seed}").read_text() for seed in (1, 2, 3)) == ["7", "8", "9"]
    table = first.out[first.out.index("job  run.seed  status") :].splitlines()
    assert first.out.endswith("\n2 finished, 1 failed\n")
    assert [line.split()[1:4] for line in table[2:5]] == [["1", "finished", "2"], ["2", "failed", "0"], ["3", "finished", "2"]]

    (tmp_path / "repaired").touch()
    again = programs.train(*command, cwd=tmp_path, env=env)
    assert again.code == 0, again.err
    assert again.out.endswith("\n3 finished, 0 failed\n")
    assert again.out.count("finished before") == 2 and json.loads((folders["run.seed=2"] / "status.json").read_text())["status"] == "finished"
    assert not list((tmp_path / "out").glob("*/config.yaml"))  # nothing outside the sweep

    made = [json.loads(line) for line in calls.read_text().splitlines()]
    inits = [call for call in made if call["call"] == "init"]
    ids = {call["name"]: {other["id"] for other in inits if other["name"] == call["name"]} for call in inits}
    assert len(inits) == 4 and len(set.union(*ids.values())) == 3  # the repaired job goes on under its own id
    assert all(len(found) == 1 for found in ids.values()) and {call["group"] for call in inits} == {"mine"}
    assert sorted(call["exit_code"] for call in made if call["call"] == "finish") == [0, 0, 0, 1]


@pytest.mark.cases("S37")
def test_lists_and_paths_become_safe_folder_names(programs: Programs, tmp_path: Path) -> None:
    tasks = tmp_path / "runs" / "a=b.jsonl"
    tasks.parent.mkdir()
    tasks.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(8)))
    small = [override for override in SMALL if not override.startswith("data")]
    command = ["-m", *small, "data=files", "data.eval_size=0", "reward=[digits],[digits,exact_match]"]
    env = {"RLEXP_OUTPUTS": str(tmp_path / "out")}
    done = programs.train(*command, 'data.path="runs/a=b.jsonl"', cwd=tmp_path, env=env)
    assert done.code == 0, done.err + done.out
    (sweep,) = (tmp_path / "out" / "sweeps").iterdir()
    jobs = sorted(path.parent for path in sweep.glob("*/status.json"))
    assert len(jobs) == 2 and all(re.fullmatch(r"[A-Za-z0-9._=-]{1,120}", job.name) for job in jobs)
    terms = sorted(len(re.findall(r"^    \w+:\n      name:", (job / "config.yaml").read_text(), re.MULTILINE)) for job in jobs)
    assert terms == [1, 2]

    unquoted = programs.train(*command, "data.path=runs/a=b.jsonl", cwd=tmp_path, env=env)
    assert unquoted.code == 1 and """'data.path="runs/a=b.jsonl"'""" in unquoted.err and "Traceback" not in unquoted.err
    wrong = programs.train(*command, 'data.path="runs/a=b.jsonl"', "sweep.jobs=0", cwd=tmp_path, env=env)
    assert wrong.code == 1 and "sweep.jobs=0" in wrong.err and "Traceback" not in wrong.err
