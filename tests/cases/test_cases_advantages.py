"""Baselines and what is logged of them, from the rollouts to the files of a run."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest
import torch

from rlexp.algorithms.grpo import GRPO
from rlexp.batching.terms import flatten
from rlexp.config.algorithm import DAPOLossConfig, GRPOConfig
from rlexp.losses.dapo import dapo
from rlexp.records.rollout import GenerationBatch, Group, Rollout
from rlexp.records.turn import Turn


def conversation(index: int, reward: float, forks: int) -> Rollout:
    """A rollout whose later turns begin with other tokens than those held so far, so that each turn is a sample of its own."""
    turns = [Turn(np.array([10 + index, fork]), np.array([20, 21, 22][: 1 + fork]), np.full(1 + fork, -1.0, np.float32), "eos") for fork in range(forks)]
    made = Rollout({"prompt": "p"}, (0, 0, "policy"), index, turns=turns)
    made.rewards, made.reward = {"r": reward}, reward
    return made


@pytest.mark.cases("S04")
@pytest.mark.rows("ASYNC-096", "ASYNC-330")
def test_a_rollout_with_several_samples_counts_once_in_the_baseline() -> None:
    rollouts = [conversation(index, reward, forks) for index, (reward, forks) in enumerate(zip([1, 0, 1, 0], [2, 1, 2, 1], strict=True))]
    batch = GenerationBatch([Group((0, 0, "policy"), rollouts)])
    algorithm = GRPO(GRPOConfig(), DAPOLossConfig(), dapo)
    samples = algorithm.samples(batch)
    terms = flatten(samples)
    algorithm.advantages(batch, samples, terms)
    assert [sample.rollout for sample in samples] == [0, 0, 1, 2, 2, 3]
    expected = [0.865875, 0.865875, -0.865875, 0.865875, 0.865875, -0.865875]  # over the six samples it would be 0.645372 and -1.290744
    of_sample = [set(terms.advantage_L[terms.offsets_S[s] : terms.offsets_S[s + 1]].round(6)) for s in range(len(samples))]
    assert of_sample == [{value} for value in expected]
    assert [rollout.advantage for rollout in rollouts] == pytest.approx([0.865875, -0.865875] * 2, abs=1e-6)


@pytest.mark.cases("S01")
@pytest.mark.rows("GRPO-020", "GRPO-021")
def test_a_missing_reward_does_not_pull_the_mean(case) -> None:
    case.tasks({"prompt": "1+1="}, {"prompt": "2+2="})
    case.answers([[20], [21], [22], [23]])
    case.rewards("def f(completions):\n    return [1, None, 0, None, None, None, 0.4, None]\n\ndef g(completions):\n    return [None, None, 1, *[None] * 5]\n")
    overrides = ["algorithm.num_generations=4", "algorithm.scale_rewards=group", "rollout.prompts_per_batch=2"]
    run = case.train(*overrides, terms={"f": 1.0, "g": 0.5})
    assert run.rollouts()["advantage"] == pytest.approx([0.706907, 0, -0.706907, 0, 0, 0, 0, 0], abs=1e-6)
    assert run.rollouts()["reward"] == [1.0, None, 0.5, None, None, None, 0.4, None]
    metrics = run.metrics()
    assert metrics["frac_reward_zero_std"] == 0.5 and metrics["grad_norm"] > 0 and "loss" in metrics
    assert all(value == "train" or isfinite(value) for value in metrics.values())
    (warning,) = [line for line in run.done.err.splitlines() if "no reward scored" in line]
    assert "no reward scored 5 rollouts" in warning and "(0, 0, 'policy')/1" in warning and "(0, 1, 'policy')/3" in warning


@pytest.mark.cases("S06")
@pytest.mark.rows("GRPO-219", "GRPO-220", "GRPO-221", "GRPO-222")
def test_the_logged_reward_is_the_weighted_one(case) -> None:
    case.tasks({"prompt": "1+1="})
    case.answers([[20], [21], [22], [23]])
    case.rewards("def f(completions):\n    return [1.0, 0.0, 1.0, 1.0]\n\ndef g(completions):\n    return [0.0, 1.0, 1.0, 0.0]\n")
    run = case.train("algorithm.num_generations=4", terms={"f": 0.7, "g": 0.3})
    logged = {name: run.metrics()[name] for name in ("reward", "reward_std", "rewards/f/mean", "rewards/g/mean")}
    assert logged == pytest.approx({"reward": 0.675, "reward_std": 0.287228, "rewards/f/mean": 0.75, "rewards/g/mean": 0.5}, abs=1e-6)
    rollouts = run.rollouts()
    assert rollouts["reward"] == pytest.approx([0.7, 0.3, 1.0, 0.7]) and rollouts["rewards/g"] == [0.0, 1.0, 1.0, 0.0]
    assert rollouts["advantage"] == pytest.approx([0.025, -0.375, 0.325, 0.025]), "what is trained on is what is logged"


@pytest.mark.cases("S39")
@pytest.mark.rows("GRPO-013")
def test_a_group_larger_than_a_micro_batch(case) -> None:
    case.tasks({"prompt": "12+34="})
    case.answers([[40 + number, 20, 21] for number in range(16)])
    case.scores(1.0, *[0.0] * 15)
    overrides = ["model.dtype=float64", "algorithm.num_generations=16", "algorithm.scale_rewards=group", "loss=grpo"]
    overrides.append("rollout.max_completion_length=3")
    # a row holds the 6 tokens of the prompt and of each of 4 rollouts all but the last token, which predicts nothing
    small = case.train(*overrides, "trainer.tokens_per_microbatch=14", where="small")
    big = case.train(*overrides, where="big")
    assert small.config["algorithm"]["num_generations"] == 16 and small.config["rollout"]["prompts_per_batch"] == 1
    for run in (small, big):
        assert run.rollouts()["advantage"] == pytest.approx([3.748501, *[-0.249900] * 15], abs=1e-6)
    forwarded = [run.json("summary.json")["tokens"]["forwarded"] for run in (small, big)]
    assert forwarded == [4 * 6 + 16 * 2, 6 + 16 * 2], "four micro-batches, each of which forwards the prompt, and one"
    weights, whole = small.weights(), big.weights()
    assert max(float((weights[name] - whole[name]).abs().max()) for name in whole) < 1e-9
    assert small.metrics()["grad_norm"] > 1e-3 and all(torch.isfinite(value).all() for value in whole.values())
