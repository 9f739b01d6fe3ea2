"""Every algorithm as a whole (clips, KL in the reward, baseline, scale) against the literal reading in advantage_literal.py."""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import re
from pathlib import Path
from typing import Any

import advantage_literal as literal
import numpy as np
import pytest
from batches import batch_of, rollout
from run_configs import composed

from rlexp.batching.terms import flatten
from rlexp.build import build_algorithm
from rlexp.components import register_all
from rlexp.records.rollout import GenerationBatch
from rlexp.registry import ALGORITHMS

register_all()
NAMES = ("grpo", "grpo_passk", "maxrl", "opo", "reinforce", "reinforce_pp", "remax", "rloo")
"""algorithms whose advantages come from rewards alone"""
CLIPS: list[dict[str, Any]] = [{}, {"reward_clip_range": [0.1, 0.8]}, {"advantage_clip": 0.4}, {"reward_clip_range": [0.0, 0.6], "advantage_clip": 1.1}]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "grpo": [{}, {"scale_rewards": "batch"}, {"scale_rewards": "none"}],
    "rloo": [{}, {"normalize_advantages": True}],
    "reinforce": [{}, {"baseline": "none"}],
    "reinforce_pp": [{}, {"baseline": "group"}],
    "grpo_passk": [{"correct_reward": 0.5}, {"correct_reward": 0.5, "k": 1}, {"correct_reward": 0.1, "k": 3}],
}
KL_IN_REWARD: list[dict[str, Any]] = [{"beta": 0.3, "kl_in": "reward", "kl_estimator": estimator} for estimator in ("k1", "k2", "k3", "abs")]
NO_KL_IN_REWARD = ("maxrl", "grpo_passk")


def random_groups(seed: int) -> GenerationBatch:
    """Ragged groups in which some rollouts, and some greedy ones, were not scored."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(4):
        rewards = rng.choice([0.0, 0.2, 0.5, 1.0, math.nan], size=rng.integers(2, 6))
        groups.append([rollout([5], rng.integers(10, 90, rng.integers(1, 6)).tolist(), float(r), number, i) for i, r in enumerate(rewards)])
    groups[0][0].reward, groups[0][1].reward = 1.0, 0.0  # something to compare
    batch = batch_of(groups)
    for group in batch.groups:
        group.baseline = float(rng.choice([0.0, 0.4, 0.9, math.nan]))
    return batch


def score(number: float) -> float | None:
    return None if math.isnan(number) else number


@pytest.mark.rows("GRPO-013", "GRPO-014", "GRPO-015", "RLOO-001", "RLOO-002", "RLOO-003", "RLOO-010", "RLOO-011", "RLOO-013", "RLOO-014", "RLOO-015")
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_literal_reading(name: str) -> None:
    config = composed("experiment=none", f"algorithm={name}")
    kls = [{"beta": 0.0}, *([] if name in NO_KL_IN_REWARD else KL_IN_REWARD)]
    for seed, (own, clips, kl) in enumerate(itertools.product(OPTIONS.get(name, [{}]), CLIPS, kls)):
        for key, value in {**vars(ALGORITHMS.config_for(name)()), **own, **clips, **kl}.items():
            setattr(config.algorithm, key, value)
        algorithm, batch = build_algorithm(config), random_groups(seed)
        samples = algorithm.samples(batch)
        terms = flatten(samples)
        rng = np.random.default_rng(seed)
        terms.columns = {name: rng.normal(-1.0, 0.5, terms.count) for name in ("old", "reference")}
        algorithm.advantages(batch, samples, terms)
        read = []
        for number, made in enumerate(batch.rollouts):
            mine = terms.rollout_L == number
            gaps = (terms.columns["old"] - terms.columns["reference"])[mine].tolist()
            read.append(literal.Rollout(made.group[1], score(made.reward), made.length, score(batch.groups[made.group[1]].baseline), gaps))
        expected = literal.advantages(name, read, vars(config.algorithm))
        for number, (made, tokens) in enumerate(zip(batch.rollouts, expected, strict=True)):
            mine = terms.rollout_L == number
            assert made.advantage == pytest.approx(sum(tokens) / len(tokens), abs=1e-7), (own, clips, kl)
            assert terms.advantage_L[mine].tolist() == pytest.approx(tokens if mine.any() else [], abs=1e-7), (own, clips, kl)
            assert mine.any() or abs(made.advantage) < 1e-12, "a group that is left out has nothing to learn"


def test_the_literal_reading_shares_no_code() -> None:
    tree = ast.parse(Path(literal.__file__).read_text(encoding="utf-8"))
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert imported == {"__future__", "itertools", "math", "statistics", "dataclasses", "typing"}


@pytest.mark.parametrize("name", NAMES)
def test_each_names_its_paper(name: str) -> None:
    module = importlib.import_module(ALGORITHMS.entry(name).target.split(":")[0])
    assert re.search(r"arXiv \d{4}\.\d{5}|\(\w+ (19|20)\d\d\)", module.__doc__ or ""), module.__name__


@pytest.mark.rows("RLOO-003", "RLOO-013", "GRPO-013")
@pytest.mark.parametrize(
    ("overrides", "rewards", "expected"),
    [
        (["algorithm=rloo", "algorithm.beta=0"], [1.0, 0.0, 2.0, math.nan], [0.0, -1.5, 1.5, 0.0]),
        (["algorithm=grpo"], [1.0, 0.0, 0.0, 1.0], [0.865875, -0.865875, -0.865875, 0.865875]),
    ],
)
def test_golden_advantages(overrides: list[str], rewards: list[float], expected: list[float]) -> None:
    algorithm = build_algorithm(composed("experiment=none", *overrides))
    batch = batch_of([[rollout([5], [20, 21], reward, 0, i) for i, reward in enumerate(rewards)]])
    samples = algorithm.samples(batch)
    algorithm.advantages(batch, samples, flatten(samples))
    assert [made.advantage for made in batch.rollouts] == pytest.approx(expected, abs=1e-6)
