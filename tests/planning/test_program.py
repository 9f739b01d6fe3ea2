"""python -m rlexp.plan: what it prints, what it refuses, and that two real steps need as much as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planning.plans import SMALL
from programs import Programs
from run_configs import composed

from rlexp.config.errors import UserError
from rlexp.planning.probe import TOLERANCE, alternating, probe_config


def test_the_table(programs: Programs, tmp_path: Path) -> None:
    done = programs.run("rlexp.plan", "experiment=addition", "evaluation=none", cwd=tmp_path)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "memory of each device (CPU, 1 process, strategy=single)"
    assert lines[1].split() == ["generation", "update", "optimizer", "step"]
    numbers = {line.split("  ")[1].strip() for line in lines[2:] if line.startswith("  ")}
    assert {"parameters", "optimizer", "gradients", "activations", "key-value cache", "together"} <= numbers
    assert any(line.startswith("total  ") for line in lines) and any(line.startswith("tokens  128 rollouts a batch") for line in lines)
    assert "trainer.gradient_checkpointing=true" in lines[-1] and lines[-1].startswith("largest: ")
    assert list(tmp_path.iterdir()) == []


def test_the_levers_are_plans(programs: Programs, tmp_path: Path) -> None:
    """The total that a change is said to give is the total of the plan with that change."""
    options = ("experiment=addition", "evaluation=none")
    said = programs.run("rlexp.plan", *options, cwd=tmp_path).out.splitlines()[-1]
    override, total = re.search(r"(trainer\.gradient_checkpointing=true) ([\d.]+ \w+)", said).groups()  # type: ignore[union-attr]
    changed = programs.run("rlexp.plan", *options, override, cwd=tmp_path).out
    assert f"total  {total}, " in changed


def test_a_gpu_that_is_too_small(programs: Programs, tmp_path: Path) -> None:
    out = programs.run("rlexp.plan", "experiment=addition", "--gpu", "0.01", cwd=tmp_path).out
    assert "(GPU, 1 process, strategy=single)" in out and "which does not fit" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-m", "loss=dapo,grpo"), "takes one config"),
        (("loss.epsilon=-1",), "loss.epsilon"),
        (("--prompt-tokens", "0"), "--prompt-tokens=0"),
        (("--gpu", "0"), "--gpu=0"),
        (("trainer.tokens_per_microbatch=16",), "trainer.tokens_per_microbatch=16"),
        (("strategy=ddp", "cluster.processes_per_node=2", "--check"), "--check measures one process"),
        (("model=hub", "model.path=nobody/nothing"), "model.path=nobody/nothing"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str, programs: Programs, tmp_path: Path) -> None:
    done = programs.run("rlexp.plan", "experiment=addition", *arguments, cwd=tmp_path)
    assert done.code == 1 and said in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("options", [[], ["peft=lora", "peft.r=16", "algorithm.beta=0.1"]], ids=["full", "lora"])
def test_two_steps_of_the_default_need_what_is_planned(options: list[str], programs: Programs, tmp_path: Path) -> None:
    cache = {"RLEXP_CACHE": str(tmp_path / "cache")}
    done = programs.run("rlexp.plan", "experiment=addition", "model.warm_start_accuracy=0", *options, "--check", cwd=tmp_path, env=cache)
    assert done.code == 0, done.out + done.err
    predicted_off = float(re.search(r"above imports: ([+-][\d.]+)%", done.out)[1])  # type: ignore[index]
    assert abs(predicted_off) <= 100 * TOLERANCE and done.out.rstrip().endswith("ok")


def test_the_probe_trains_every_group() -> None:
    config = probe_config(composed(*SMALL, "trainer.steps_per_batch=2", "algorithm.num_iterations=3"))
    assert config.trainer.max_steps == 12 and config.evaluation.name == config.checkpoint.name == "none"
    assert alternating(["a", "b", "c"]) == [0.0, 1.0, 0.0]
    with pytest.raises(UserError, match="vllm_server"):
        probe_config(composed(*SMALL, "generation=vllm_server"))
