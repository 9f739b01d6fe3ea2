"""strategy=deepspeed_zero3 with two processes that talk over gloo: the gradients and the runs of one process, and checkpoints that others continue."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import random_batch
from cluster.test_fsdp2_gradients import BUDGETS, CASES, algorithm
from cluster.test_fsdp2_runs import BASE, COMBINATIONS, difference, network_names
from cluster.world import in_worlds, run_job, run_of
from models_for_tests import tiny_model
from programs import Programs
from run_configs import default_with
from run_folders import metrics
from step_gradients import gradients
from transformers import AutoModelForCausalLM

from rlexp.config.model import LoraConfig
from rlexp.config.strategy import DeepSpeedZero3StrategyConfig, engine_config
from rlexp.config.validate_strategy import problems


def on_ranks(path: str) -> None:
    """Rank 0 of two writes the gradients of all cases, in float32."""
    from rlexp.distributed.strategy.deepspeed_zero3 import DeepSpeedZero3Strategy

    torch.set_num_threads(1)
    made = DeepSpeedZero3Strategy(DeepSpeedZero3StrategyConfig(timeout=60))
    found = {
        (case, tokens): gradients(algorithm(case), random_batch(1), tokens=tokens, strategy=made, moved=0.02, dtype=torch.float32)[0][0]
        for case in CASES
        for tokens in BUDGETS
    }
    if made.collectives.rank == 0:
        torch.save(found, path)
    made.collectives.barrier()
    made.close()


@pytest.mark.rows("GRPO-176")
def test_two_processes_give_the_gradient_of_one(programs: Programs, tmp_path: Path) -> None:
    job = {"world": 2, "call": "cluster.test_zero3:on_ranks", "arguments": [str(tmp_path / "found.pt")]}
    in_worlds(programs, tmp_path / "jobs", job)
    for (case, _), found in torch.load(tmp_path / "found.pt").items():
        (whole,), _ = gradients(algorithm(case), random_batch(1), moved=0.02, dtype=torch.float32)
        assert whole.abs().max() > 1e-4 and torch.allclose(found, whole, atol=1e-5, rtol=0), case


RUN = [*BASE, "optimizer=sgd", "optimizer.momentum=0.9", "optimizer.learning_rate=0.05", "optimizer.schedule=constant", "evaluation=none", "checkpoint.steps=2"]
KINDS = {name: COMBINATIONS[name] for name in ("grpo", "moving reference", "sdpo ema", "sdpo live", "agents", "checkpointed")}
KINDS["sdpo head"] = [*COMBINATIONS["sdpo ema"], "algorithm.distillation_mode=full_logits", "algorithm.distillation_alpha=0.5"]
"""the teacher's head is read beside the student's"""
KINDS["bf16"] = [*COMBINATIONS["grpo"], "trainer.precision=bf16", "model.dtype=bfloat16"]
ALLOWED = {"bf16": 0.03}
"""differences of weights and losses, where it is not 1e-5"""


def cut_all(told: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`engine_config` with which all weights are cut: DeepSpeed leaves those of less than 100,000 numbers whole, which are all of a tiny model."""

    def changed(config: DeepSpeedZero3StrategyConfig, *, bf16: bool) -> dict[str, Any]:
        settings = told(config, bf16=bf16)
        settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        return settings

    return changed


def in_small_parts(job: dict[str, Any]) -> int:
    """A rank of a run whose weights are all cut."""
    from rlexp.distributed.strategy import deepspeed_zero3

    deepspeed_zero3.engine_config = cut_all(deepspeed_zero3.engine_config)
    return run_job(job)(int(os.environ["RANK"]))


@pytest.mark.rows("GRPO-086", "RLOO-034", "SDPO-058", "SDPO-020")
def test_runs_of_every_kind(programs: Programs, tmp_path: Path) -> None:
    tied = tiny_model(hidden=16, tied=True, dtype=torch.float32)
    for part in (tied.module, tied.tokenizer):
        part.save_pretrained(tmp_path / "tied")
    other = [
        *("trainer.tokens_per_microbatch=100", "model=hub", f"model.path={tmp_path / 'tied'}"),
        *("algorithm.teacher_model_kind=model", f"algorithm.teacher_path={tmp_path / 'tied'}"),
        *(option for option in KINDS["sdpo head"] if "update_rate" not in option),
    ]
    kinds = {**KINDS, "another teacher": other}
    jobs = []
    for name, kind in kinds.items():
        options = [*RUN, *kind, "trainer.max_steps=4"]
        in_step = ["strategy.gather_for_generation=false"] if name in ("grpo", "agents") else []
        two = run_of(tmp_path / name / "two", 2, [*options, *in_step], "deepspeed_zero3")
        jobs += [run_of(tmp_path / name / "one", 1, options), {"world": 2, "call": "cluster.test_zero3:in_small_parts", "arguments": [two]}]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    for name in kinds:
        one, two = tmp_path / name / "one", tmp_path / name / "two"
        for network in network_names(one):
            assert difference(one, two, network) < ALLOWED.get(name, 1e-5), name
        for line, other in zip(metrics(one), metrics(two), strict=True):
            assert other["loss"] == pytest.approx(line["loss"], abs=ALLOWED.get(name, 1e-5)), name
    saved = [AutoModelForCausalLM.from_pretrained(tmp_path / "grpo" / run / "model").state_dict() for run in ("one", "two")]
    assert all(torch.allclose(value, saved[1][name], atol=1e-5) for name, value in saved[0].items())


@pytest.mark.rows("GRPO-250")
def test_other_strategies_continue_its_checkpoints_and_it_theirs(programs: Programs, tmp_path: Path) -> None:
    def to(step: int) -> dict[str, str]:
        return {"RLEXP_FAULT": f"{step}:backward:before", "RLEXP_FAULT_RANK": "0"}

    options = [*BASE, *COMBINATIONS["moving reference"], "optimizer.learning_rate=1e-3", "trainer.max_steps=8", "checkpoint.steps=2", "evaluation=none"]
    folder = tmp_path / "moved"
    in_worlds(
        programs,
        tmp_path / "jobs",
        run_of(tmp_path / "one", 1, options),
        run_of(folder, 2, options, "deepspeed_zero3", code=-9, env=to(2)),
        run_of(folder, 2, options, "fsdp2", code=-9, env=to(4)),
        run_of(folder, 2, options, "deepspeed_zero3", code=-9, env=to(6)),
        run_of(folder, 1, options),
    )
    assert difference(tmp_path / "one", folder) < 1e-5


def test_what_deepspeed_is_told() -> None:
    told = engine_config(DeepSpeedZero3StrategyConfig(offload="all"), bf16=True)
    assert json.dumps(told, indent=1) == (Path(__file__).parent / "zero3_config.json").read_text().strip()
    plain = engine_config(DeepSpeedZero3StrategyConfig(), bf16=False)
    assert plain["bf16"] == {"enabled": False} and not {"offload_param", "offload_optimizer"} & plain["zero_optimization"].keys()


@pytest.mark.rows("GRPO-264")
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"peft": LoraConfig()}, "strategy=deepspeed_zero3 does not go with peft=lora"),
        ({"model__dtype": "float64"}, "strategy=deepspeed_zero3 computes in one dtype"),
        ({"model__compile": True}, "model.compile=true does not go with strategy=deepspeed_zero3"),
    ],
)
def test_what_does_not_go_together(values: dict[str, object], told: str) -> None:
    config = default_with(strategy=DeepSpeedZero3StrategyConfig(), cluster__processes_per_node=2, **values)
    assert [problem[: len(told)] for problem in problems(config)] == [told]
