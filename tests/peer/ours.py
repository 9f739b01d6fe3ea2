"""rlexp's own trainer, built from a command line, on fixed rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import scripted  # noqa: F401 (registers generation=scripted)
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from peer.results import Steps
from peer.rollouts import LENGTH, Rollouts
from transformers import AutoTokenizer

from rlexp import resolvers
from rlexp.build import build
from rlexp.components import register_all
from rlexp.config.convert import checked_config
from rlexp.config.overrides import set_value
from rlexp.config.run import RunConfig
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.launch.folder import RunFolder
from rlexp.registry import conf_dir
from rlexp.training.silent import SilentLog
from rlexp.training.trainer import Trainer

RATE = 1.0
"""learning rate of plain SGD, the same on both sides: large, so that ratios of a second pass leave 1 far behind"""

BASE = (
    *("model=hub", "data=files", "data.eval_size=0", "data.shuffle=false", "generation=scripted", "reward=[]", "evaluation=none", "checkpoint=none"),
    *(f"rollout.max_completion_length={LENGTH}", "optimizer=sgd"),
    *(f"optimizer.learning_rate={RATE}", "optimizer.schedule=constant", "optimizer.max_grad_norm=null"),
)


class OnCPU(SingleStrategy):
    """On the CPU, as the peer, whatever else the machine has."""

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cpu")


class Kept(SilentLog):
    """Keeps the metrics of each step."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def log(self, step: int, split: str, metrics: dict[str, float], time_s: float) -> None:
        """One line."""
        self.steps.metrics.append(metrics)


@cache
def _groups(*choices: str) -> dict[str, Any]:
    """The sections that options of groups give, before any value is set: composing takes longer than training."""
    register_all()
    resolvers.register()
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        made = OmegaConf.to_container(compose("config", overrides=list(choices)))
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


def configured(*overrides: str) -> RunConfig:
    """The config of `python -m rlexp.train experiment=none OVERRIDES`."""
    pairs = [override.removeprefix("+").split("=", 1) for override in overrides]
    choices = {key: value for key, value in pairs if "." not in key}
    data = OmegaConf.to_container(OmegaConf.create(_groups("experiment=none", *(f"{key}={value}" for key, value in choices.items()))), resolve=True)
    assert isinstance(data, dict)
    for key, value in pairs:
        if "." in key:
            set_value(data, key, yaml.safe_load(value))  # type: ignore[arg-type]
    return checked_config(data)  # type: ignore[arg-type]


def train(folder: Path, model: Path, rollouts: Rollouts, *overrides: str, steps: int = 1, change: Callable[[Trainer], None] | None = None) -> Steps:
    """`python -m rlexp.train OVERRIDES` for some optimizer steps. change: called with the trainer before it starts."""
    answers = [
        [{"ids": ids, **_logprobs(rollouts, task, number), **_finish(rollouts, task, number)} for number, ids in enumerate(group)]
        for task, group in enumerate(rollouts.ids(AutoTokenizer.from_pretrained(model)))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers.json").write_text(json.dumps({"answers": answers}))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rollouts.rows()))
    paths = [f"model.path={model}", f"data.path={folder / 'tasks.jsonl'}"]
    if not any(override.startswith("generation=") for override in overrides):
        paths.append(f"generation.path={folder / 'answers.json'}")
    terms = [f"reward.terms.{name}={{name: custom, path: 'peer.rollouts:{name}'}}" for name in ("first", "second")[: len(rollouts.rewards)]]
    size = [f"rollout.prompts_per_batch={len(rollouts.answers)}", f"algorithm.num_generations={rollouts.group}", f"trainer.max_steps={steps}"]
    config = configured(*BASE, *paths, *terms, *size, *overrides)
    trainer, _ = build(config, RunFolder(folder), OnCPU(config.strategy))
    kept = Steps()
    trainer.parts.log = Kept(kept)
    policy = trainer.parts.trainables["policy"]
    policy.optimizer.register_step_pre_hook(lambda *_: kept.take(policy.network.module.named_parameters()))
    if change is not None:
        change(trainer)
    try:
        trainer.run()
    finally:
        trainer.parts.evaluator.player.close()
    return kept


def _logprobs(rollouts: Rollouts, task: int, number: int) -> dict[str, list[float | None]]:
    return {} if rollouts.logprobs is None else {"logprobs": list(rollouts.logprobs[task][number])}


def _finish(rollouts: Rollouts, task: int, number: int) -> dict[str, str]:
    return {"finish": "stop"} if (task, number) in rollouts.ended else {}
