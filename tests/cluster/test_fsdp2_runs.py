"""Whole runs with parts of the weights in two processes: trained as one process trains, killed, continued by other numbers of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cluster.world import in_worlds, run_of
from models_for_tests import tiny_model
from programs import Programs
from run_folders import metrics
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlexp.training.shard_files import ShardFiles

BASE = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "data.eval_size=2", "reward=[digits]"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "trainer.steps_per_batch=2", "algorithm.num_generations=4"),
    *("trainer.tokens_per_microbatch=80", "checkpoint.keep_last=3", "checkpoint.keep_best=0", "tracker.rollout_steps=1"),
]
EXACT = [*BASE, "model.dtype=float64", "optimizer=sgd", "optimizer.learning_rate=0.05", "optimizer.schedule=constant", "trainer.max_steps=4"]
"""plain gradient steps, so that weights differ by what gradients differ by"""
COMBINATIONS = {
    "grpo": ["loss=dapo", "algorithm.beta=0.1", "algorithm.num_iterations=2"],
    "moving reference": [
        "loss=grpo",
        "algorithm.beta=0.1",
        "algorithm.sync_ref_model=true",
        "algorithm.ref_model_sync_steps=2",
        "algorithm.ref_model_mixup_alpha=0.5",
    ],
    "rloo": ["algorithm=rloo", "algorithm.beta=0.05", "algorithm.normalize_advantages=true"],
    "sdpo ema": ["algorithm=sdpo", "algorithm.success_reward_threshold=0.25", "algorithm.distillation_weight=0.5", "algorithm.teacher_update_rate=0.3"],
    "sdpo live": [
        *("algorithm=sdpo", "algorithm.success_reward_threshold=0.25", "algorithm.teacher_model_kind=live", "algorithm.distillation_mode=full_logits"),
        "algorithm.distillation_alpha=0.5",
    ],
    "agents": ["algorithm=contract_agents", "loss=dapo"],
    "lora": ["peft=lora", "peft.r=2", "loss=dapo", "algorithm.beta=0.1", "optimizer.learning_rate=0.5"],
    "lora sdpo": [
        *("peft=lora", "peft.r=2", "algorithm=sdpo", "algorithm.success_reward_threshold=0.25", "algorithm.distillation_weight=0.5"),
        *("algorithm.teacher_update_rate=0.3", "optimizer.learning_rate=0.5"),
    ],
    "checkpointed": ["loss=dapo", "trainer.gradient_checkpointing=true"],
}


def saved(folder: Path, network: str = "policy") -> dict[str, torch.Tensor]:
    """The trained weights in a run's last checkpoint, whoever wrote them."""
    weights = folder / "checkpoints" / "latest" / "weights"
    if (weights / f"{network}.safetensors").is_file():
        return load_file(weights / f"{network}.safetensors")
    files = ShardFiles(weights / network)
    return {name: files.read(name, 0, files.stored(name).shape[0]) for name in files.names()}


def difference(one: Path, two: Path, network: str = "policy") -> float:
    """The largest of any weight."""
    mine, theirs = saved(one, network), saved(two, network)
    assert mine.keys() == theirs.keys()
    return max(float((value - theirs[name]).abs().max()) for name, value in mine.items())


def network_names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".safetensors") for path in (folder / "checkpoints" / "latest" / "weights").iterdir())


@pytest.mark.rows("GRPO-011", "RLOO-001", "SDPO-042")
def test_every_kind_of_run_trains_the_weights_of_one_process(programs: Programs, tmp_path: Path) -> None:
    jobs = []
    for name, options in COMBINATIONS.items():
        jobs += [run_of(tmp_path / name / "one", 1, [*EXACT, *options]), run_of(tmp_path / name / "two", 2, [*EXACT, *options], "fsdp2")]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    for name in COMBINATIONS:
        one, two = tmp_path / name / "one", tmp_path / name / "two"
        assert network_names(one) == network_names(two)
        for network in network_names(one):
            assert difference(one, two, network) < 1e-9, name
        for line, other in zip(metrics(one), metrics(two), strict=True):
            assert other == pytest.approx(line, abs=1e-8), name


TRAJECTORY = [
    *(*BASE, "rollout.prompts_per_batch=4", "trainer.steps_per_batch=1", "algorithm.num_iterations=5", "trainer.max_steps=5", "optimizer.learning_rate=1e-3"),
    *("optimizer.weight_decay=0.01", "checkpoint.steps=5", "evaluation=none", "algorithm.beta=0.05"),
]
"""float32, AdamW, five steps on one batch"""


def test_five_steps_on_one_batch_are_the_same_for_every_strategy(programs: Programs, tmp_path: Path) -> None:
    jobs = [run_of(tmp_path / f"{strategy}{world}", world, TRAJECTORY, strategy) for strategy, world in (("single", 1), ("ddp", 2), ("fsdp2", 2), ("fsdp2", 3))]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    one = tmp_path / "single1"
    assert len(metrics(one)) == 5 and metrics(one)[4]["loss"] != metrics(one)[0]["loss"]
    for job in jobs[1:]:
        for line, other in zip(metrics(one), metrics(Path(job["folder"])), strict=True):
            assert {name: other[name] for name in ("loss", "grad_norm", "kl", "reward")} == pytest.approx(
                {name: line[name] for name in ("loss", "grad_norm", "kl", "reward")}, abs=1e-5
            ), job
        assert difference(one, Path(job["folder"])) < 1e-5, job


RESUMED = [*BASE, "optimizer.learning_rate=0.01", "optimizer.schedule=constant", "trainer.max_steps=8", "checkpoint.steps=1", "evaluation=none"]


@pytest.mark.rows("GRPO-250", "GRPO-253", "SDPO-103")
@pytest.mark.parametrize("name", ["grpo", "sdpo ema", "agents"])
def test_killed_and_continued_gives_the_same_bits(name: str, programs: Programs, tmp_path: Path) -> None:
    options = [*RESUMED, *COMBINATIONS[name]]
    jobs = [run_of(tmp_path / "whole", 2, options, "fsdp2")]
    for death, rank in (("2:optimizer:after", 1), ("3:checkpoint:before", 0), ("5:reduce:after", 0), ("6:follow:after", 1)):
        jobs.append(run_of(tmp_path / "killed", 2, options, "fsdp2", code=-9, env={"RLEXP_FAULT": death, "RLEXP_FAULT_RANK": str(rank)}))
    jobs.append(run_of(tmp_path / "killed", 2, options, "fsdp2"))
    in_worlds(programs, tmp_path / "jobs", *jobs)
    for network in network_names(tmp_path / "whole"):
        assert difference(tmp_path / "whole", tmp_path / "killed", network) == 0.0
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "killed")


def test_the_final_model_is_one_that_transformers_loads(programs: Programs, tmp_path: Path) -> None:
    few = [*BASE, "trainer.max_steps=2", "optimizer.learning_rate=0.05", "evaluation=none"]
    kinds = {"full": [], "merged": ["peft=lora", "peft.r=2", "peft.save=merged"], "layerwise": ["strategy.gather_for_generation=false"]}
    jobs = [run_of(tmp_path / name, 2, [*few, *options], "fsdp2") for name, options in kinds.items()]
    jobs += [run_of(tmp_path / "merged one", 1, [*few, *kinds["merged"]]), run_of(tmp_path / "one", 1, few)]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    models = {Path(job["folder"]).name: AutoModelForCausalLM.from_pretrained(Path(job["folder"]) / "model").state_dict() for job in jobs}
    trained = {name.removeprefix("module."): value for name, value in saved(tmp_path / "full").items()}
    assert all(torch.equal(models["full"][name], value) for name, value in trained.items())
    for name, other in (("full", "one"), ("merged", "merged one"), ("layerwise", "one")):
        assert models[name].keys() == models[other].keys()
        assert max(float((value - models[other][key]).abs().max()) for key, value in models[name].items()) < 1e-5, name
    assert metrics(tmp_path / "layerwise") == metrics(tmp_path / "full"), "layer by layer the same is sampled and trained"


@pytest.mark.rows("GRPO-047", "GRPO-086", "ASYNC-347")
def test_other_models_and_ways_to_sample(programs: Programs, tmp_path: Path) -> None:
    """A tied head, experts, bfloat16, and ranks that go in step with one model and with two; distance to one process that does the same."""
    for name, of_model in {"tied": {"tied": True}, "experts": {"kind": "qwen3_moe"}, "plain": {}}.items():
        loaded = tiny_model(hidden=16, spread=3.0, **of_model)
        loaded.module.save_pretrained(tmp_path / "models" / name)
        loaded.tokenizer.save_pretrained(tmp_path / "models" / name)

    def hub(name: str) -> list[str]:
        return ["model=hub", f"model.path={tmp_path / 'models' / name}"]

    in_step, bf16 = "strategy.gather_for_generation=false", "trainer.precision=bf16"
    few = [*BASE, "trainer.max_steps=3", "optimizer=sgd", "optimizer.learning_rate=0.05", "evaluation=none", "algorithm.beta=0.1"]
    kinds: dict[str, tuple[list[str], float]] = {  # norms of a model from a folder compute in float32, whatever its dtype
        "tied": ([*hub("tied"), "model.dtype=float64"], 1e-7),
        "experts": (hub("experts"), 1e-5),
        "bf16": ([*hub("plain"), bf16, "model.dtype=bfloat16"], 0.03),
        "bf16 lora": ([*hub("tied"), bf16, "peft=lora", "peft.r=2"], 0.03),
        "adapters in step": (["model.dtype=float64", "peft=lora", "peft.r=2", "generation=transformers", in_step], 1e-9),
        "agents in step": (["model.dtype=float64", "algorithm=contract_agents", "algorithm.beta=0", in_step], 1e-9),
    }
    jobs = []
    for name, (options, _) in kinds.items():
        alone = [option for option in options if option != in_step]
        jobs += [run_of(tmp_path / name / "one", 1, [*few, *alone]), run_of(tmp_path / name / "two", 2, [*few, *options], "fsdp2")]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    for name, (_, allowed) in kinds.items():
        for network in network_names(tmp_path / name / "one"):
            assert difference(tmp_path / name / "one", tmp_path / name / "two", network) < allowed, name
    assert {value.dtype for value in saved(tmp_path / "bf16" / "two").values()} == {torch.float32}, "trained in float32 whatever they were loaded in"
