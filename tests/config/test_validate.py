"""Combinations of keys that cannot work are refused, each naming the keys and the fix."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rlexp.config.algorithm import DAPOLossConfig
from rlexp.config.losses import LUSPOLossConfig
from rlexp.config.validate import PACKAGES, problems
from rlexp.registry import REGISTRIES

CASES = [
    pytest.param(
        ["trainer.steps_per_batch=3"],
        "trainer.steps_per_batch=3 does not divide rollout.prompts_per_batch=16 x algorithm.num_generations=8 = 128: "
        "the rollouts of a batch are cut into steps of equally many; choose a divisor of 128",
        marks=pytest.mark.rows("GRPO-256"),
    ),
    (["trainer.steps_per_batch=256"], "trainer.steps_per_batch=256 does not divide"),
    pytest.param(["loss.delta=1.2"], "loss.delta=1.2 must exceed 1 + loss.epsilon = 1.2", marks=pytest.mark.rows("GRPO-039")),
    (["reward=[]"], "reward has no term: choose at least one, e.g. reward=[exact_match]"),
    (["reward.terms.exact_match.weight=0"], "every reward.terms.<key>.weight is 0"),
    pytest.param(
        ["reward=overlong", "reward.terms.overlong.max_length=20", "reward.terms.overlong.buffer=25"],
        "reward.terms.overlong.buffer=25 is larger than reward.terms.overlong.max_length=20: every completion would be punished; make it smaller",
        marks=[pytest.mark.cases("S34"), pytest.mark.rows("GRPO-127")],
    ),
    pytest.param(
        ["reward=overlong", "rollout.max_completion_length=20", "reward.terms.overlong.buffer=25"],
        "reward.terms.overlong.buffer=25 is larger than rollout.max_completion_length=20",
        marks=[pytest.mark.cases("S34"), pytest.mark.rows("GRPO-127")],
    ),
    pytest.param(
        ["experiment=none", "data=hub", "data.path=x", "data.streaming=true"],
        "data.streaming=true needs trainer.max_steps",
        marks=pytest.mark.rows("GRPO-259"),
    ),
    (["rollout.max_completion_length=64", "trainer.tokens_per_microbatch=64"], "1 prompt + rollout.max_completion_length=64 = 65 tokens is possible"),
    pytest.param(
        ["data.overlong_prompt=drop", "data.max_prompt_length=40", "rollout.max_completion_length=32", "trainer.tokens_per_microbatch=64"],
        "does not fit trainer.tokens_per_microbatch=64: 72 > 64; raise the latter, or trainer.oversize_samples=drop",
        marks=pytest.mark.cases("S40"),
    ),
    (["cluster.processes_per_node=2"], "cluster.processes_per_node=2 needs a strategy for several processes: strategy=ddp"),
    pytest.param(["peft=lora", "peft.targets=[q_proj,lm_head]"], "puts an adapter on the head (lm_head)", marks=pytest.mark.rows("GRPO-173")),
    (["peft=lora", "peft.targets=[]"], "peft.targets is empty"),
    (["evaluation.accuracy=exactmatch"], "evaluation.accuracy=exactmatch is not a reward term; did you mean exact_match?"),
    (["checkpoint.metric=acuracy"], "checkpoint.metric=acuracy is no metric of the evaluation; did you mean accuracy?"),
    (["checkpoint.metric=pass@4"], "checkpoint.metric=pass@4 needs sampled completions: evaluation.num_generations > 0"),
    (["generation.stop=['']"], "generation.stop holds an empty string"),
    (["run.name=a/b"], "run.name=a/b must be letters"),
    (["sweep.name=a/b"], "sweep.name=a/b must be letters"),
    (["sweep=halving", "evaluation.steps=null"], "sweep.method=halving compares runs by evaluations on their way: set evaluation.steps"),
    (["sweep=halving", "data.eval_size=0"], "sweep.method=halving compares runs by evaluations, and there are none"),
    (["sweep=halving", "evaluation.steps=10", "sweep.pause_at=15"], "sweep.pause_at=15 is no multiple of evaluation.steps=10"),
    (
        ["cluster=slurm", "sweep=halving", "evaluation.steps=1", "cluster.wait=false"],
        "sweep.method=halving compares the runs of a rung before it submits the next",
    ),
    (["cluster=slurm", "sweep.stop_on_failure=true", "cluster.wait=false"], "sweep.stop_on_failure=true takes jobs out of the queue when one has failed"),
    (["sweep.pause_at=15", "checkpoint=none"], "sweep.pause_at=15 pauses runs by a checkpoint, and checkpoint=none saves none"),
    (["sweep=halving", "evaluation.steps=10", "sweep.metric=accurcy"], "sweep.metric=accurcy is no metric of the evaluation; did you mean accuracy?"),
]


@pytest.mark.parametrize(("overrides", "message"), CASES)
def test_refused(quick_run, overrides, message):
    found = problems(quick_run(*overrides))
    assert len(found) == 1, found
    assert message in found[0]


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss.delta=1.21"],
        ["trainer.steps_per_batch=128"],
        ["checkpoint.metric=reward"],
        ["checkpoint.metric=rewards/exact_match/mean"],
        ["checkpoint.metric=pass@4", "evaluation.num_generations=4"],
        ["checkpoint.metric=my_metric", "reward=custom", "reward.terms.custom.path=x.py:f"],  # what the function logs is not known yet
        ["checkpoint.metric=anything", "evaluation=none"],
        ["reward=overlong", "reward.terms.overlong.buffer=8"],
        ["rollout.max_completion_length=64", "trainer.tokens_per_microbatch=64", "trainer.oversize_samples=drop"],
        ["strategy=ddp", "cluster.processes_per_node=2"],
        ["peft=lora", "peft.targets=[q_proj]"],
    ],
    ids=str,
)
def test_allowed(quick_run, overrides):
    assert problems(quick_run(*overrides)) == []


def test_several_combinations_are_listed_together(quick_run):
    found = problems(quick_run("trainer.steps_per_batch=3", "loss.delta=1.1", "reward=[]", "cluster.processes_per_node=2"))
    assert [text.split("=")[0] for text in found] == [
        "trainer.steps_per_batch",
        "loss.delta",
        "reward has no term: choose at least one, e.g. reward",
        "cluster.processes_per_node",
    ]


@pytest.mark.rows("GRPO-034", "GRPO-263")
def test_luspo_refuses_other_ratios(quick_run):
    for level in ("token", "sequence_token"):
        config = quick_run()
        config.loss = LUSPOLossConfig(importance_sampling_level=level)
        assert problems(config) == [
            f"loss.importance_sampling_level={level} contradicts loss=luspo, which is defined for sequence: leave the key out or set sequence"
        ]


def test_a_loss_of_sequence_level_refuses_token_ratios(quick_run):
    @dataclass
    class SequenceLoss(DAPOLossConfig):
        level: ClassVar[str] = "sequence"
        name: str = "sequence_loss"

    config = quick_run()
    config.loss = SequenceLoss()
    assert problems(config) == [
        "loss.importance_sampling_level=token contradicts loss=sequence_loss, which is defined for sequence: leave the key out or set sequence"
    ]
    config.loss = SequenceLoss(importance_sampling_level="sequence")
    assert problems(config) == []


def test_a_missing_package_is_named_with_what_to_install(quick_run, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in ("peft", "math_verify", "wandb") else real(name, *rest))
    assert problems(quick_run("peft=lora", "reward=accuracy", "tracker=wandb")) == [
        "peft=lora needs the package peft, which is not installed: pip install 'rlexp[peft]'",
        "reward=accuracy needs the package math_verify, which is not installed: pip install 'rlexp[math]'",
        "tracker=wandb needs the package wandb, which is not installed: pip install 'wandb'",
    ]


def test_packages_are_those_of_registered_options():
    for group, name in PACKAGES:
        assert name in REGISTRIES[group].names()
