"""Which configs are the same run."""

from __future__ import annotations

import pytest
from run_configs import composed, default_with

from rlexp.config.strategy import FSDP2StrategyConfig
from rlexp.config.training import WandbTrackerConfig
from rlexp.launch.identity import differing, fingerprint, wants_more

BASE = default_with()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run__name", "other"),
        ("run__experiment", "none"),
        ("run__resume", "must"),
        ("trainer__max_steps", 77),
        ("trainer__epochs", 3.0),
        ("trainer__threads", 3),
        ("tracker__steps", 5),
        ("tracker__terms", {"wandb": WandbTrackerConfig()}),
        ("sweep__jobs", 4),
        ("sweep__name", "mine"),
        ("cluster__processes_per_node", 2),
        ("strategy", FSDP2StrategyConfig()),
    ],
)
def test_same_run(key: str, value: object) -> None:
    assert fingerprint(default_with(**{key: value})) == fingerprint(BASE)
    assert differing(BASE, default_with(**{key: value})) == []


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("run__seed", 7, "run.seed: 42 -> 7"),
        ("optimizer__learning_rate", 0.25, "optimizer.learning_rate: 0.0003 -> 0.25"),
        ("evaluation__steps", 7, "evaluation.steps: 10 -> 7"),
        ("checkpoint__steps", 7, "checkpoint.steps: 20 -> 7"),
        ("loss__epsilon_high", 0.28, "loss.epsilon_high: None -> 0.28"),
        ("data__digits", 1, "data.digits: 2 -> 1"),
    ],
)
def test_another_run(key: str, value: object, told: str) -> None:
    assert fingerprint(default_with(**{key: value})) != fingerprint(BASE)
    assert differing(BASE, default_with(**{key: value})) == [told]


def test_keys_that_only_one_has() -> None:
    assert "optimizer.momentum: not set -> 0.0" in differing(BASE, composed("optimizer=sgd"))
    assert "reward.terms.think_format.weight: not set -> 1.0" in differing(BASE, composed("reward=[exact_match,think_format]"))


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [
        ((10, 1.0), (10, 1.0), False),
        ((10, 1.0), (20, 1.0), True),
        ((10, 1.0), (5, 1.0), False),
        ((None, 1.0), (None, 2.0), True),
        ((None, 2.0), (None, 1.0), False),
        ((None, 1.0), (125, 1.0), False),  # summary: 125 steps were made
        ((None, 1.0), (126, 1.0), True),
        ((10, 1.0), (None, 1.0), True),  # the trainer knows the steps of an epoch
    ],
)
def test_when_a_finished_run_gets_more_steps(old: tuple, new: tuple, more: bool) -> None:
    before, after = (default_with(trainer__max_steps=steps, trainer__epochs=epochs) for steps, epochs in (old, new))
    assert wants_more(before, after, {"steps": 125}) is more
