"""algorithm=sdpo through the command line: each mode with each teacher, full weights and LoRA, two processes, killed and resumed."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from models_for_tests import tiny_model
from programs import Programs
from run_folders import final_weights, metrics
from runs_here import Logged, config_of, model_folder, trained
from safetensors.torch import load_file

from rlexp.config.model import LoraConfig
from rlexp.training.trainer import Trainer

BASE = [
    *(
        "experiment=none",
        "data=addition",
        "data.digits=1",
        "data.size=40",
        "data.eval_size=2",
        "reward=[digits]",
        "algorithm=sdpo",
        "algorithm.num_generations=4",
    ),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "trainer.steps_per_batch=2", "algorithm.success_reward_threshold=0.25"),
    *("optimizer.learning_rate=0.01", "optimizer.schedule=constant", "trainer.max_steps=3", "evaluation=none", "checkpoint.steps=1", "checkpoint.keep_last=1"),
    *("checkpoint.keep_best=0", "run.name=r"),
]
MODES = {
    "sampled_token": [],
    "full_logits": ["algorithm.distillation_mode=full_logits", "algorithm.distillation_alpha=0.5"],
    "topk_logits": ["algorithm.distillation_mode=topk_logits", "algorithm.distillation_topk=8", "algorithm.distillation_add_tail=true"],
}
TEACHERS = ("ema", "live", "base", "model")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 whose answers have some digits."""
    return model_folder(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger one with the same tokenizer."""
    where = tmp_path_factory.mktemp("other") / "large"
    loaded = tiny_model(hidden=32, layers=2, seed=3, spread=3.0)
    loaded.module.save_pretrained(where)
    loaded.tokenizer.save_pretrained(where)
    return where


def train(programs: Programs, model: Path | None, where: Path, *overrides: str, env: dict[str, str] | None = None, code: int = 0) -> Path:
    """model: None takes one whose norms compute in float64."""
    where.mkdir(exist_ok=True)
    options = [*BASE, *(["model=random_tiny"] if model is None else ["model=hub", f"model.path={model}"]), *overrides]
    done = programs.train(*options, cwd=where, env={"RLEXP_OUTPUTS": str(where), **(env or {})})
    assert done.code == code, f"exit {done.code}\n{done.out[-3000:]}\n{done.err[-3000:]}"
    return where / "r"


def taught(run: Path) -> list[float]:
    """The distillation of each step that had one."""
    return [line["self_distillation/distillation_loss"] for line in metrics(run) if line.get("self_distillation/distillation_loss")]


@pytest.mark.rows("SDPO-007", "SDPO-017...020")
@pytest.mark.parametrize(("mode", "teacher"), list(itertools.product(MODES, TEACHERS)))
def test_each_mode_with_each_teacher(mode: str, teacher: str, programs: Programs, model: Path, other: Path, tmp_path: Path) -> None:
    path = [f"algorithm.teacher_path={other}"] if teacher == "model" else []
    run = train(programs, model, tmp_path, *MODES[mode], f"algorithm.teacher_model_kind={teacher}", *path)
    assert taught(run), "some step was taught"
    assert len([line for line in metrics(run) if line["split"] == "train"]) == 3


@pytest.mark.rows("SDPO-021", "SDPO-074")
@pytest.mark.parametrize("teacher", ["ema", "live", "base"])
def test_each_teacher_of_an_adapter(teacher: str, programs: Programs, model: Path, tmp_path: Path) -> None:
    run = train(programs, model, tmp_path, "peft=lora", "peft.r=2", f"algorithm.teacher_model_kind={teacher}", "algorithm.distillation_weight=0.5")
    assert taught(run)
    saved = load_file(run / "checkpoints" / "latest" / "weights" / "policy.safetensors")
    assert saved and all("lora_" in name and ".default." in name for name in saved)


@pytest.mark.rows("SDPO-020", "SDPO-103")
@pytest.mark.parametrize("adapter", [[], ["peft=lora", "peft.r=2"]], ids=["full", "lora"])
def test_killed_and_resumed_with_a_slow_teacher_gives_the_same_bytes(adapter: list[str], programs: Programs, model: Path, tmp_path: Path) -> None:
    options = [*adapter, "trainer.max_steps=7", "algorithm.teacher_update_rate=0.3", "algorithm.teacher_sync_steps=2", "algorithm.demonstration=random"]
    whole = train(programs, model, tmp_path / "whole", *options)
    for death in ("1:follow:before", "3:follow:after", "4:samples:after", "4:optimizer:after", "6:log:after"):
        train(programs, model, tmp_path / "killed", *options, env={"RLEXP_FAULT": death}, code=-9)
    killed = train(programs, model, tmp_path / "killed", *options)
    assert final_weights(killed) == final_weights(whole) and metrics(killed) == metrics(whole)
    assert len(taught(whole)) > 2


@pytest.mark.rows("SDPO-042", "SDPO-075")
def test_two_processes_train_the_same_weights(programs: Programs, tmp_path: Path) -> None:
    options = ["model.dtype=float64", "optimizer=sgd", "optimizer.learning_rate=0.05", "algorithm.distillation_weight=0.5"]
    one = train(programs, None, tmp_path / "one", *options)
    two = train(programs, None, tmp_path / "two", *options, "strategy=ddp", "cluster.processes_per_node=2")
    weights = [load_file(run / "checkpoints" / "latest" / "weights" / "policy.safetensors") for run in (one, two)]
    assert max(float((value - weights[1][name]).abs().max()) for name, value in weights[0].items()) < 1e-9
    assert taught(one) and taught(one) == pytest.approx(taught(two), abs=1e-9)


def test_a_teacher_with_other_tokens_is_refused(programs: Programs, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "words")
    file = tmp_path / "words" / "tokenizer.json"
    tokens = json.loads(file.read_text())
    tokens["model"]["vocab"]["¤"] = tokens["model"]["vocab"].pop("~")
    file.write_text(json.dumps(tokens))
    options = ["algorithm.teacher_model_kind=model", f"algorithm.teacher_path={tmp_path / 'words'}"]
    done = programs.train(*BASE, "model=hub", f"model.path={model}", *options, cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path)})
    assert done.code == 1 and "its tokenizer is another one than the policy's" in done.err and "Traceback" not in done.err


# in the process of the test


def run_here(model: Path, folder: Path, change: Any = None, **values: Any) -> Logged:
    config = config_of(model, folder, algorithm="sdpo", **values)
    return trained(config, folder, change)


@pytest.mark.rows("SDPO-020", "SDPO-022", "SDPO-023")
def test_the_slow_teacher_is_the_average_that_the_options_say(model: Path, tmp_path: Path) -> None:
    seen: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    parts: list[Trainer] = []

    def change(trainer: Trainer) -> None:
        parts.append(trainer)
        policy = trainer.parts.trainables["policy"]
        after = trainer.parts.algorithm.after_step

        def kept(totals: dict[str, float]) -> None:
            both = (policy.network, policy.companions["teacher"].network)
            seen.append(tuple({name: value.clone() for name, value in network.state_dict().items()} for network in both))  # type: ignore[arg-type]
            after(totals)

        trainer.parts.algorithm.after_step = kept  # type: ignore[method-assign]
        seen.append(tuple({name: value.clone() for name, value in policy.network.state_dict().items()} for _ in range(2)))  # type: ignore[arg-type]

    run_here(model, tmp_path, change, algorithm__teacher_update_rate=0.3, algorithm__teacher_sync_steps=2, trainer__max_steps=4)
    (start, _), (_, first), (second, followed), (_, third), _ = seen
    for name in start:
        assert torch.equal(first[name], start[name]) and torch.equal(third[name], followed[name])
        assert torch.allclose(followed[name], 0.7 * start[name] + 0.3 * second[name], atol=1e-12)
    assert any(not torch.equal(second[name], start[name]) for name in start)


@pytest.mark.rows("SDPO-004")
def test_without_distillation_it_is_grpo_bit_by_bit(model: Path, tmp_path: Path) -> None:
    networks: list[Any] = []

    def change(trainer: Trainer) -> None:
        networks.append(trainer.parts.trainables["policy"])
        assert not networks[-1].companions

    run_here(model, tmp_path / "sdpo", change, algorithm__distillation_weight=0.0)
    trained(config_of(model, tmp_path / "grpo"), tmp_path / "grpo", change)
    ours, grpo = (policy.network.state_dict() for policy in networks)
    assert all(torch.equal(value, grpo[name]) for name, value in ours.items())


@pytest.mark.rows("SDPO-030", "SDPO-070")
def test_a_reward_may_log_the_feedback(model: Path, tmp_path: Path) -> None:
    text = "def score(completion_ids, log_extra):\n    log_extra('hint', ['try again'] * len(completion_ids))\n    return [0.0] * len(completion_ids)\n"

    def change(trainer: Trainer) -> None:
        assert trainer.parts.algorithm.reward_weights == {"mine": 1.0}

    config = config_of(model, tmp_path, algorithm="sdpo", algorithm__include_environment_feedback=True, algorithm__feedback_column="hint")
    (tmp_path / "my_reward.py").write_text(text)
    for line in trained(config, tmp_path, change).train():
        assert line["self_distillation/feedback_used_fraction"] == line["self_distillation/reprompt_sample_fraction"] == 1.0
        assert line["self_distillation/distillation_loss"] != 0.0 and line["grad_norm"] > 0


@pytest.mark.rows("SDPO-115")
def test_one_hard_task_alone(model: Path, tmp_path: Path) -> None:
    logged = run_here(model, tmp_path, data__size=1, rollout__prompts_per_batch=1, algorithm__num_generations=8, trainer__max_steps=3)
    assert len(logged.train()) == 3 and any("self_distillation/distillation_loss" in line for line in logged.train())


@pytest.mark.rows("SDPO-021")
def test_the_teacher_of_an_adapter_learns_nothing_by_gradient(model: Path, tmp_path: Path) -> None:
    def change(trainer: Trainer) -> None:
        policy = trainer.parts.trainables["policy"]
        assert len(policy.parameters) == sum(".default." in name for name, _ in policy.network.named_parameters())

    run_here(model, tmp_path, change, peft=LoraConfig(r=2))
