"""Every shipped algorithm: what it makes of a small batch, when a group may be left out, and a few steps through the command line."""

from __future__ import annotations

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from batches import batch_of, rollout
from loss_batches import loss_config
from programs import Programs
from run_configs import composed, default_with
from run_folders import metrics
from small_runs import Cli

from rlexp.batching.terms import flatten
from rlexp.build import build_algorithm
from rlexp.components import register_all
from rlexp.config.validate import problems
from rlexp.records.rollout import GenerationBatch
from rlexp.registry import ALGORITHMS, LOSSES

register_all()
SHIPPED = [name for name in ALGORITHMS.names() if ALGORITHMS.entry(name).origin.startswith("rlexp.")]


def made(name: str, **options):
    algo = ALGORITHMS.load(name)(ALGORITHMS.config_for(name)(**options), loss_config("dapo"), LOSSES.load("dapo"))
    algo.reward_weights = {"r": 1.0}
    return algo


def batch() -> GenerationBatch:
    """Rewards 1, 0, 0 with 2, 3, 5 tokens; then 1, 1."""
    first = [rollout([5], list(range(20, 20 + n)), r, 0, i) for i, (r, n) in enumerate([(1.0, 2), (0.0, 3), (0.0, 5)])]
    return batch_of([first, [rollout([5], [20 + i], 1.0, 1, i) for i in range(2)]])


def filled(algo, groups: GenerationBatch, **columns):
    samples = algo.samples(groups)
    terms = flatten(samples)
    terms.columns = {name: np.array(values, float) for name, values in columns.items()}
    algo.advantages(groups, samples, terms)
    return terms, [each.advantage for each in groups.rollouts]


ADVANTAGES = [
    ("grpo", {"scale_rewards": "none"}, [2 / 3, -1 / 3, -1 / 3, 0, 0]),
    ("rloo", {"beta": 0.0}, [1, -0.5, -0.5, 0, 0]),
    ("reinforce", {}, [0.4, -0.6, -0.6, 0.4, 0.4]),
    ("reinforce", {"baseline": "none"}, [1, 0, 0, 1, 1]),
    ("opo", {}, [0.8, -0.2, -0.2, 0, 0]),
    ("maxrl", {}, [2, -1, -1, 0, 0]),
    # 1 of 3 right, k = 2: 1 of 3 sets fails, std sqrt(2) / 3; a wrong one fails in 1 of its 2 sets
    ("grpo_passk", {}, [(1 / 3) / (math.sqrt(2) / 3), *[(1 / 3 - 1 / 2) / (math.sqrt(2) / 3)] * 2, 0, 0]),
]


@pytest.mark.parametrize(("name", "options", "expected"), ADVANTAGES)
def test_advantages(name, options, expected):
    terms, found = filled(made(name, **options), batch())
    assert found == pytest.approx(expected, abs=1e-9)
    _, clipped = filled(made(name, advantage_clip=0.3, **options), batch())
    assert clipped == pytest.approx([max(-0.3, min(0.3, value)) for value in expected], abs=1e-9)
    never = name == "reinforce"
    assert len(terms.rollout_L) == (12 if never else 10), "the second group is left out where its advantages are 0 whatever the others do"


def test_remax_by_hand():
    groups = batch()
    groups.groups[0].baseline, groups.groups[1].baseline = 0.5, 1.0
    terms, found = filled(made("remax"), groups)
    assert found == [0.5, -0.5, -0.5, 0.0, 0.0] and set(terms.rollout_L.tolist()) == {0, 1, 2}, "the second group has the greedy reward throughout"
    groups.groups[1].baseline = 0.25
    terms, found = filled(made("remax", reward_clip_range=[0.0, 0.6]), groups)
    assert found == pytest.approx([0.1, -0.5, -0.5, 0.35, 0.35]) and set(terms.rollout_L.tolist()) == {0, 1, 2, 3, 4}, "equal rewards carry a signal"
    groups.groups[0].baseline = math.nan
    assert filled(made("remax"), groups)[1] == [0.0] * 3 + [0.75] * 2, "an unscored greedy rollout is no baseline"


def test_remax_plays_each_task_greedily_too(programs: Programs, tmp_path):
    """The reward is the share of one letter; the greedy rollouts of a task are the same, so its advantages are rewards less one number."""
    cli = Cli(programs, tmp_path)
    done = cli.train("algorithm=remax", "algorithm.num_generations=2", "trainer.max_steps=1", "trainer.steps_per_batch=1")
    assert done.code == 0, done.err[-2000:]
    (line,) = [line for line in metrics(cli.run) if line["split"] == "train"]
    table = pq.read_table(cli.run / "rollouts" / "step_000001.parquet").to_pydict()
    baselines = [reward - advantage for reward, advantage in zip(table["reward"], table["advantage"], strict=True)]
    assert len(baselines) == 4 and baselines[0] == pytest.approx(baselines[1]) and baselines[2] == pytest.approx(baselines[3])
    assert line["reward_greedy"] == pytest.approx((baselines[0] + baselines[2]) / 2)
    assert line["num_tokens"] > sum(map(len, table["completion"])), "greedy tokens count"


def test_reinforce_pp_by_hand():
    """Five tokens, rewards 1 and 0, KL 0.1 each: the reward to go of a token less the KL from it to the end, normalised over the five."""
    groups = batch_of([[rollout([5], [20, 21], 1.0, 0, 0), rollout([5], [22, 23, 24], 0.0, 0, 1)]])
    terms, found = filled(made("reinforce_pp", beta=0.5), groups, old=[-1.0] * 5, reference=[-1.1] * 5)
    raw = np.array([1 - 0.10, 1 - 0.05, -0.15, -0.10, -0.05])
    expected = (raw - raw.mean()) / raw.std(ddof=1)
    assert terms.advantage_L.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert found == pytest.approx([expected[:2].mean(), expected[2:].mean()], abs=1e-6)
    assert groups.metrics["kl"] == (pytest.approx(0.5), 5.0)
    terms, _ = filled(made("reinforce_pp", baseline="group"), batch())
    raw = np.repeat([2 / 3, -1 / 3, -1 / 3, 0, 0], [2, 3, 5, 1, 1])
    assert terms.advantage_L.tolist() == pytest.approx(((raw - raw.mean()) / raw.std(ddof=1)).tolist(), abs=1e-6)


def test_reinforce_pp_without_a_score():
    groups = batch_of([[rollout([5], [20, 21], 1.0, 0, 0), rollout([5], [22], math.nan, 0, 1), rollout([5], [23], 0.0, 0, 2)]])
    terms, _ = filled(made("reinforce_pp"), groups)
    raw = np.array([1.0, 1.0, 0.0])
    whitened = (raw - raw.mean()) / raw.std(ddof=1)
    assert terms.advantage_L.tolist() == pytest.approx([*whitened[:2], 0.0, whitened[2]], abs=1e-6)


def test_reinforce_pp_leaves_masked_tokens_out_of_the_statistics():
    """A token whose sampler gave no number (generation.on_missing_logprob=mask): the mean and std are those of the three others."""
    groups = batch_of([[rollout([5], [20, 21], 1.0, 0, 0), rollout([5], [22, 23], 0.0, 0, 1)]])
    algo = made("reinforce_pp")
    samples = algo.samples(groups)
    terms = flatten(samples)
    terms.active_L = np.array([True, False, True, True])
    algo.advantages(groups, samples, terms)
    std = math.sqrt(1 / 3)  # of 1, 0, 0 with mean 1 / 3
    assert terms.advantage_L.tolist() == pytest.approx([2 / 3 / std, 0.0, -1 / 3 / std, -1 / 3 / std], abs=1e-6)


def test_reinforce_pp_when_all_rewards_are_nearly_or_quite_equal():
    """Rewards 2e-8 apart: the mean is off by 1e-8, the std of the two is sqrt(2) 1e-8, and 1e-8 is added to it."""
    groups = batch_of([[rollout([5], [20], 2e-8, 0, 0), rollout([5], [21], 0.0, 0, 1)]])
    expected = 1 / (math.sqrt(2) + 1)
    assert filled(made("reinforce_pp"), groups)[1] == pytest.approx([expected, -expected], abs=1e-9)
    flat = batch_of([[rollout([5], [20], 0.1, 0, i) for i in range(7)]])
    assert filled(made("reinforce_pp"), flat)[1] == pytest.approx([0.0] * 7, abs=1e-6), "the mean of seven times 0.1 is not quite 0.1"


def test_remax_leaves_out_a_group_that_was_not_scored():
    groups = batch()
    groups.groups[0].baseline, groups.groups[1].baseline = math.nan, 1.0
    groups.groups[1].rollouts[0].reward = math.nan
    assert made("remax").samples(groups) == []
    assert len(made("remax", beta=0.1).samples(groups)) == 5, "a KL is a signal"


@pytest.mark.rows("GRPO-017", "GRPO-018", "GRPO-019")
def test_gdpo_keeps_groups_whose_rewards_cancel():
    groups = batch()
    for each, pair in zip(groups.rollouts, [(1, 0), (0, 1), (0, 1), (1, 1), (1, 1)], strict=True):
        each.rewards, each.reward = {"a": pair[0], "b": pair[1]}, float(sum(pair))
    algo = made("grpo", multi_objective_aggregation="normalize_then_sum")
    algo.reward_weights = {"a": 2.0, "b": 1.0}
    terms, found = filled(algo, groups)
    assert set(terms.rollout_L.tolist()) == {0, 1, 2}, "their totals are equal, their rewards are not"
    z = (1 - 1 / 3) / (math.sqrt(1 / 3) + 1e-4)
    sums = np.array([2 * z - z, -z + z / 2, -z + z / 2, 0, 0])
    assert found == pytest.approx((sums / (sums.std(ddof=1) + 1e-4)).tolist(), abs=1e-9)
    algo = made("grpo")
    algo.reward_weights = {"a": 1.0, "b": 1.0}
    assert filled(algo, groups)[1] == [0.0] * 5


def test_the_weights_of_the_reward_terms_arrive():
    config = composed("experiment=none", "reward=[exact_match,overlong]", "reward.terms.overlong.weight=0.5", "reward.terms.overlong.buffer=2")
    assert dict(build_algorithm(config).reward_weights) == {"exact_match": 1.0, "overlong": 0.5}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"algorithm__multi_objective_aggregation": "normalize_then_sum", "algorithm__reward_clip_range": [0.0, 1.0]},
            "algorithm.reward_clip_range acts on the total",
        ),
        (
            {"algorithm__multi_objective_aggregation": "normalize_then_sum", "algorithm__kl_in": "reward", "algorithm__beta": 0.1},
            "algorithm.kl_in=reward acts on the total",
        ),
        ({"algorithm__reward_clip_range": [1.0]}, "algorithm.reward_clip_range=[1.0] must be [lowest, highest]"),
    ],
)
def test_contradictions_are_named(values, message):
    assert [problem for problem in problems(default_with(**values)) if message in problem]


def test_sets_larger_than_a_group_are_named():
    config = composed("experiment=none", "algorithm=grpo_passk")
    config.algorithm.k = 9
    (problem,) = problems(config)
    assert "algorithm.k=9 is larger than algorithm.num_generations=8" in problem


@pytest.mark.parametrize("name", SHIPPED)
def test_a_few_steps(name, programs: Programs, tmp_path):
    """With a KL of the default kind, several steps a batch and two passes."""
    cli = Cli(programs, tmp_path)
    right = {  # the test reward is rarely higher
        "grpo_passk": ["algorithm.correct_reward=0.3"],
        "sdpo": ["algorithm.success_reward_threshold=0.3", "algorithm.distillation_weight=0.5", "trainer.tokens_per_microbatch=200"],
    }.get(name, [])
    done = cli.train(
        f"algorithm={name}", *right, "algorithm.beta=0.1", "algorithm.num_iterations=2", "trainer.max_steps=5", "algorithm.num_generations=4", "loss=dapo"
    )
    assert done.code == 0, done.err[-2000:]
    lines = [line for line in metrics(cli.run) if line["split"] == "train"]
    assert len(lines) == 5 and all("kl" in line and math.isfinite(line["loss"]) for line in lines)
    assert max(line["grad_norm"] for line in lines) > 1e-4 and lines[4]["kl"] != 0.0
