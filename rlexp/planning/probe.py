"""`rlexp.plan --check`: real steps at the planned size, in a process of their own, and the memory they took."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlexp import registry
from rlexp.config.errors import UserError
from rlexp.config.generation import NativeGenerationConfig, TransformersGenerationConfig
from rlexp.config.reward import CustomRewardConfig
from rlexp.config.run import RunConfig
from rlexp.config.saved import load_config, save_config
from rlexp.tracking.memory import Memory

TOLERANCE = 0.15
"""share of the measured memory that the predicted may be off by"""
BATCHES = 2
"""the optimizer's state exists from the end of the first"""
HOT = 20.0
"""temperature at which nearly any token follows any other, so that completions share little but their prompt"""

EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
"""environment of the process: glibc returns what is freed at once, also tensors of a small model, so that a peak is one of live memory. It costs time"""


def alternating(completions: list[str], **_: Any) -> list[float]:
    """A reward that gives every group a signal."""
    return [float(place % 2) for place in range(len(completions))]


def probe_config(config: RunConfig) -> RunConfig:
    """Two batches whose completions have the longest length and whose groups all learn; nothing is evaluated, saved or tracked.

    Raises UserError for what cannot be measured in one process without an engine.
    """
    if config.cluster.processes != 1 or config.strategy.name != "single":
        raise UserError("--check measures one process: leave out strategy and cluster, or plan without it")
    if not isinstance(config.generation, (NativeGenerationConfig, TransformersGenerationConfig)):
        raise UserError(f"--check samples with generation=native or transformers, not {config.generation.name}, whose memory is what its own keys say")
    reward = dataclasses.replace(config.reward, terms={"probe": CustomRewardConfig(path=f"{__name__}:{alternating.__name__}")})
    steps = BATCHES * config.trainer.steps_per_batch * config.algorithm.num_iterations
    return dataclasses.replace(
        config,
        reward=reward,
        generation=dataclasses.replace(config.generation, temperature=HOT),
        trainer=dataclasses.replace(config.trainer, max_steps=steps),
        evaluation=dataclasses.replace(config.evaluation, name="none", accuracy=None),
        checkpoint=dataclasses.replace(config.checkpoint, name="none"),
        tracker=dataclasses.replace(config.tracker, terms={}),
    )


def measured(config: RunConfig) -> int:
    """Bytes that the steps of a probe_config took above imports. Raises UserError with what they said when they fail."""
    registry.MODELS.load(config.model.name)(config.model, seed=config.run.seed)  # a model that is made or fetched on first use is in its cache then
    with tempfile.TemporaryDirectory(prefix="rlexp-plan-") as folder:
        save_config(config, Path(folder) / "config.yaml")
        command = [sys.executable, "-m", "rlexp.plan", "--probe", folder]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **EXACT}, check=False)
    lines = done.stdout.split()
    if done.returncode or not lines or not lines[-1].isdigit():
        raise UserError("the steps of --check failed:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]))
    return int(lines[-1])


def measure(folder: Path, build: Callable[[RunConfig, Path], Any]) -> int:
    """Inside that process. folder: holds the config. build: makes the trainer of a run in this folder."""
    config = load_config(folder / "config.yaml")
    from rlexp.planning.warm import warm_up

    warm_up(config)
    memory = Memory()
    trainer = build(config, folder)
    player = trainer.parts.evaluator.player
    for policy in player.generator.policies.values():
        policy.eos_ids = ()  # completions run to their longest length
    try:
        memory.reset()
        trainer.run()
        return memory.peak
    finally:
        player.close()
