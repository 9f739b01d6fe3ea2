"""The first step: what ratio, loss and gradient must be when nothing has been updated yet."""

from __future__ import annotations

import math

import pytest
import torch

CLIPPED = {f"clip_ratio/{part}": 0.0 for part in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")}


@pytest.mark.cases("S09")
@pytest.mark.rows("GRPO-002")
def test_the_loss_is_zero_and_the_gradient_is_not(case) -> None:
    case.tasks({"prompt": "a"})
    case.answers([[0], [1]])
    case.scores(1.0, -1.0)
    table = case.table(probabilities=[0.5, 0.5], words=["a", "b"])
    run = case.train(*table, "model.dtype=float64", "algorithm.num_generations=2", "loss=probed")
    first = run.metrics()
    assert first["loss"] == 0.0 and first["ratio/min"] == first["ratio/max"] == 1.0
    assert {name: value for name, value in first.items() if name.startswith("clip_ratio/")} == CLIPPED
    assert first["grad_norm"] == pytest.approx(math.sqrt(0.5), abs=1e-12), "-0.5 for the logit of id 0 and +0.5 for that of id 1"
    moved = run.weights()["module.lm_head.weight"] - math.log(0.5)
    assert torch.allclose(moved, torch.tensor([[0.05, 0.0], [-0.05, 0.0]], dtype=torch.float64), atol=1e-12, rtol=0)


KINDS = {
    "bf16": ["trainer.precision=bf16"],
    "lora": ["peft=lora", "peft.r=4"],
    "lora_bf16": ["peft=lora", "peft.r=4", "trainer.precision=bf16", "generation.temperature=0.7"],
    "float32": ["generation.temperature=1.3"],
}


@pytest.mark.cases("S09")
@pytest.mark.rows("GRPO-002", "GRPO-003")
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ratio_is_exactly_one(kind: str, case, model_folder) -> None:
    """The old log-probs are scored in a pass of their own (two steps per batch); the model's config asks for dropout."""
    case.tasks({"prompt": "12+34="}, {"prompt": "5+6="})
    case.rewards("def score(completion_ids):\n    return [float(i % 2) for i, _ in enumerate(completion_ids)]\n")
    overrides = ["model=hub", f"model.path={model_folder}", "rollout.prompts_per_batch=2", "algorithm.num_generations=4", "loss=probed"]
    overrides += ["trainer.steps_per_batch=2", "trainer.max_steps=2", "optimizer.learning_rate=0.5", *KINDS[kind]]
    run = case.train(*overrides, generator="native")
    first, second = run.metrics(1), run.metrics(2)
    assert first["ratio/min"] == first["ratio/max"] == 1.0 and first["loss"] == pytest.approx(0.0, abs=1e-6) and first["grad_norm"] > 0
    assert second["ratio/max"] != 1.0, "the second step sees moved weights, so the probe can fail"
    if "lora" in kind:
        weights = run.weights()
        assert all(".lora_" in name for name in weights) and all(value.abs().max() > 0 for name, value in weights.items() if ".lora_B" in name)


@pytest.mark.cases("S12")
@pytest.mark.rows("GRPO-060")
def test_nucleus_sampling_has_no_biased_ratio(case) -> None:
    case.tasks({"prompt": "d"})
    case.rewards("def score(completion_ids):\n    return [1.0 if ids == [0] else -1.0 for ids in completion_ids]\n")
    table = case.table(probabilities=[0.5, 0.3, 0.15, 0.05], words=["a", "b", "c", "d"], eos_ids=[0])
    sampling = ["generation.top_p=0.8", "generation.top_k=4", "rollout.max_completion_length=1"]
    # id 1 ends by the token limit and is masked, so the step is one token with advantage +1
    loss = ["loss=probed", "loss.against=sampler", "loss.mask_truncated_completions=true", "algorithm.num_generations=2", "run.seed=2"]
    run = case.train(*table, "model.dtype=float64", *sampling, *loss, generator="native")
    rollouts, first = run.rollouts(), run.metrics()
    stated = {0: -0.470004, 1: -0.980829}
    assert sorted(ids[0] for ids in rollouts["ids"]) == [0, 1], "choose another seed: both ids must be in the group"
    for ids, logprobs in zip(rollouts["ids"], rollouts["logprobs"], strict=True):
        assert logprobs == pytest.approx([stated[ids[0]]], abs=1e-6)
    assert first["sampling/sampling_logp_difference/max"] < 1e-7, "the stored one is float32"
    assert first["loss"] == pytest.approx(-1.0, abs=1e-6), "-0.8 when only the sampler renormalises"
    assert run.json("summary.json")["tokens"]["trained"] == 1
