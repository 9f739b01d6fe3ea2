"""Whole runs in the process of the test: the real trainer as the command line builds it, with what it logs at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models_for_tests import tiny_model
from run_configs import default_with

from rlexp.build import build
from rlexp.components import register_all
from rlexp.config.model import HubModelConfig
from rlexp.config.reward import CustomRewardConfig
from rlexp.config.run import RunConfig
from rlexp.config.validate import problems
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.launch.folder import RunFolder
from rlexp.records.rollout import Rollout
from rlexp.registry import ALGORITHMS, LOSSES
from rlexp.training.silent import SilentLog
from rlexp.training.trainer import Trainer

register_all()
REWARD = "def score(completion_ids):\n    return [float(ids[0] % 2) for ids in completion_ids]\n"
"""0 or 1 by the first sampled token, so that groups of a random model differ"""


@dataclass
class Logged(SilentLog):
    """Lines of metrics and batches of rollouts, in order."""

    lines: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    batches: list[tuple[str, list[Rollout]]] = field(default_factory=list)

    def log(self, step: int, split: str, metrics: dict[str, float], time_s: float) -> None:
        """One line."""
        self.lines.append((split, dict(metrics)))

    def rollouts(self, step: int, split: str, rollouts: list[Rollout]) -> None:
        """One batch."""
        self.batches.append((split, list(rollouts)))

    def train(self) -> list[dict[str, float]]:
        """The lines of optimizer steps."""
        return [line for split, line in self.lines if split == "train"]


def model_folder(where: Path, kind: str = "qwen3") -> Path:
    """A random model as it comes from the hub."""
    loaded = tiny_model(kind=kind, hidden=16, layers=1, spread=3.0)
    loaded.module.save_pretrained(where)
    loaded.tokenizer.save_pretrained(where)
    return where


def config_of(model: Path, folder: Path, *, algorithm: str = "grpo", loss: str | None = None, dtype: str = "float64", **values: Any) -> RunConfig:
    """A small run of an algorithm with its defaults and a loss (None: dapo, and rloo's own for rloo). values: as of default_with."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_reward.py").write_text(REWARD)
    small = {
        "model": HubModelConfig(path=str(model), dtype=dtype),
        "algorithm": ALGORITHMS.config_for(algorithm)(),
        "loss": LOSSES.config_for(loss or ("rloo" if algorithm == "rloo" else "dapo"))(),
        "data__digits": 1,
        "data__size": 40,
        "data__eval_size": 2,
        "reward__terms": {"mine": CustomRewardConfig(path=f"{folder / 'my_reward.py'}:score")},
        "rollout__prompts_per_batch": 3,
        "rollout__max_completion_length": 6,
        "algorithm__num_generations": 6,
        "trainer__steps_per_batch": 1,
        "trainer__max_steps": 2,
        "trainer__epochs": 1,
        "evaluation__at_start": False,
        "evaluation__steps": None,
        "checkpoint__name": "none",
        "optimizer__learning_rate": 0.01,
    }
    config = default_with(**{**small, **values})
    assert problems(config) == []
    return config


def trained(config: RunConfig, folder: Path, change: Callable[[Trainer], None] | None = None) -> Logged:
    """Run it to the end. change: called with the trainer before it starts."""
    trainer, _ = build(config, RunFolder(folder), SingleStrategy(config.strategy))
    trainer.parts.log = logged = Logged()
    if change is not None:
        change(trainer)
    try:
        assert trainer.run() == "finished"
    finally:
        trainer.parts.evaluator.player.close()
    return logged
