"""Four algorithms that pull in different directions through the one loop, killed before and after each of its calls.

The command line, run folder, launcher and loop are the product's; the algorithms are small but real (components.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs
from run_folders import final_weights, metrics, rollouts
from safetensors.torch import load_file

BASE = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=2", "reward=[digits]"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "trainer.steps_per_batch=2", "algorithm.num_generations=4"),
    *("optimizer.learning_rate=0.01", "optimizer.schedule=constant", "trainer.tokens_per_microbatch=60", "evaluation.steps=1"),
    *("checkpoint.steps=3", "checkpoint.keep_last=1", "checkpoint.keep_best=0", "run.name=r", "tracker.rollout_steps=1"),
]
ALGORITHMS = {
    "grpo": ["algorithm=grpo", "loss=dapo", "algorithm.num_iterations=2"],
    "rloo": ["algorithm=contract_rloo", "loss=grpo", "algorithm.beta=0.05"],
    "sdpo": ["algorithm=contract_sdpo", "loss=dapo"],
    "agents": ["algorithm=contract_agents", "loss=dapo"],
    "agents_shared": ["algorithm=contract_agents_shared", "loss=dapo"],
}
PREPARATION = ("next", "samples", "plan", "score", "advantages")
STEP = ("backward", "reduce", "optimizer", "follow", "after_step", "publish", "log")


def train(programs: Programs, where: Path, *overrides: str, env: dict[str, str] | None = None, code: int = 0) -> Path:
    where.mkdir(exist_ok=True)
    done = programs.train(*BASE, *overrides, cwd=where, env={"RLEXP_OUTPUTS": str(where), **(env or {})})
    assert done.code == code, f"exit {done.code}\n{done.out[-3000:]}\n{done.err[-3000:]}"
    return where / "r"


def faults(passes: int) -> list[str]:
    """Every call of the loop, before and after, each at another step: preparation at the first step of a batch, the rest between."""
    per_batch = 2 * passes
    prepare = [f"{call}:{when}" for call in PREPARATION for when in ("before", "after")]
    within = [f"{call}:{when}" for call in STEP for when in ("before", "after")]
    made, step = [], 0
    while prepare or within:
        if step % per_batch == 0 and prepare:
            made.append(f"{step}:{prepare.pop(0)}")
        elif step % per_batch != 0 and within:
            made.append(f"{step}:{within.pop(0)}")
        step += 1
    # these come after the step was counted
    return [*made, f"{step}:evaluate:before", f"{step + 1}:evaluate:after", f"{step // 3 * 3 + 3}:checkpoint:before", f"{step // 3 * 3 + 6}:checkpoint:after"]


@pytest.mark.rows("GRPO-250", "GRPO-253")
@pytest.mark.cases("S42", "S43")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_killed_at_every_call_and_resumed_gives_the_same_bytes(name: str, programs: Programs, tmp_path: Path) -> None:
    options = ALGORITHMS[name]
    deaths = faults(2 if name == "grpo" else 1)
    steps = [f"trainer.max_steps={int(deaths[-1].split(':')[0]) + 2}"]
    whole = train(programs, tmp_path / "whole", *options, *steps)
    train(programs, tmp_path / "killed", *options, *steps, env={"RLEXP_FAULT": deaths[0]}, code=-9)
    for death in deaths[1:]:
        done = programs.run(
            "contracts.life", str(tmp_path / "killed" / "r"), cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path / "killed"), "RLEXP_FAULT": death}
        )
        assert done.code == -9, f"{death} was not reached: exit {done.code}\n{done.out[-2000:]}\n{done.err[-2000:]}"
    killed = train(programs, tmp_path / "killed", *options, *steps)
    assert final_weights(killed) == final_weights(whole)
    assert metrics(killed) == metrics(whole)
    assert rollouts(killed) == rollouts(whole)
    assert [line["step"] for line in metrics(whole) if line["split"] == "train"] == list(range(1, int(steps[0].split("=")[1]) + 1))


@pytest.mark.parametrize("name", ["grpo", "agents"])
def test_pauses_and_garbage_random_states_change_nothing(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*ALGORITHMS[name], "trainer.max_steps=8"]
    quiet = train(programs, tmp_path / "quiet", *options)
    noisy = train(programs, tmp_path / "noisy", *options, "reward.terms.digits.sleep=0.02", "reward.terms.digits.reseed=true")
    assert final_weights(noisy) == final_weights(quiet) and metrics(noisy) == metrics(quiet)


@pytest.mark.parametrize("name", ["rloo", "sdpo", "agents"])
def test_the_special_input_reaches_the_weights(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*ALGORITHMS[name], "trainer.max_steps=4"]
    full = train(programs, tmp_path / "full", *options)
    ablated = train(programs, tmp_path / "ablated", *options, "algorithm.ablate=true")
    changed = {file for file, value in final_weights(full).items() if final_weights(ablated)[file] != value}
    assert changed >= ({"policy.safetensors"} if name != "agents" else {"first.safetensors", "second.safetensors"})


def largest_difference(a: Path, b: Path) -> float:
    found = 0.0
    for path in sorted((a / "checkpoints" / "latest" / "weights").iterdir()):
        mine, theirs = load_file(path), load_file(b / "checkpoints" / "latest" / "weights" / path.name)
        found = max([found, *(float((mine[key] - theirs[key]).abs().max()) for key in mine)])
    return found


SGD = ["model.dtype=float64", "optimizer=sgd", "optimizer.learning_rate=0.05", "trainer.max_steps=4"]
"""plain gradient steps, so that weights differ by what gradients differ by"""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_and_other_rows_train_the_same_weights(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*ALGORITHMS[name], *SGD]
    one = train(programs, tmp_path / "one", *options)
    rows = train(programs, tmp_path / "rows", *options, "trainer.tokens_per_microbatch=2000")
    two = train(programs, tmp_path / "two", *options, "strategy=ddp", "cluster.processes_per_node=2")
    assert largest_difference(one, rows) < 1e-9
    assert largest_difference(one, two) < 1e-9


@pytest.mark.parametrize("name", ["grpo", "agents"])
def test_two_processes_killed_and_resumed(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*ALGORITHMS[name], "trainer.max_steps=8", "strategy=ddp", "cluster.processes_per_node=2"]
    whole = train(programs, tmp_path / "whole", *options)
    for death, rank in (("4:backward:after", 1), ("5:reduce:after", 0)):
        train(programs, tmp_path / "killed", *options, env={"RLEXP_FAULT": death, "RLEXP_FAULT_RANK": str(rank)}, code=1)
    killed = train(programs, tmp_path / "killed", *options)
    assert final_weights(killed) == final_weights(whole) and metrics(killed) == metrics(whole)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_groups_that_come_late_are_part_of_the_checkpoint(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*ALGORITHMS[name], "rollout=late", "trainer.max_steps=13"]
    whole = train(programs, tmp_path / "whole", *options)
    sync = train(programs, tmp_path / "sync", *ALGORITHMS[name], "trainer.max_steps=13")
    assert final_weights(sync) != final_weights(whole), "late groups were sampled by older weights"
    for death in ("4:next:after", "7:optimizer:after", "10:log:before"):
        train(programs, tmp_path / "killed", *options, env={"RLEXP_FAULT": death}, code=-9)
    killed = train(programs, tmp_path / "killed", *options)
    assert final_weights(killed) == final_weights(whole) and metrics(killed) == metrics(whole)
