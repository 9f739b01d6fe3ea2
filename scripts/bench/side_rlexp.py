"""The rlexp side: a run put together by rlexp.build, whose own loop is measured."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from safetensors.torch import save_file

from rlexp import build, plugins, registry, resolvers
from rlexp.components import register_all
from rlexp.config.convert import checked_config
from rlexp.config.run import RunConfig
from rlexp.launch.folder import RunFolder
from rlexp.registry import conf_dir
from rlexp.tracking.journal import Journal
from rlexp.training.trainer import Trainer
from scripts.bench.recorder import Recorder, Stop
from scripts.bench.workloads import THREADS, Workload

RATE = 1e-6
STEPS = 100_000
"""never reached"""


def overrides(workload: Workload, inputs: Path) -> list[str]:
    """The command line of the run."""
    given = [
        *("experiment=none", "data=files", f"data.path={inputs}/prompts.jsonl", "data.shuffle=false", "data.eval_size=0"),
        *("model=hub", f"model.path={inputs}/model", "loss=dapo", f"algorithm.num_generations={workload.generations}"),
        *(f"algorithm.num_iterations={workload.iterations}", f"algorithm.beta={workload.beta}"),
        *("reward=[custom]", f"reward.terms.custom.path={Path(__file__).with_name('reward.py')}:spread"),
        *(f"rollout.prompts_per_batch={workload.prompts}", f"rollout.max_completion_length={workload.max_new}"),
        *(f"optimizer.learning_rate={RATE}", "optimizer.schedule=constant", f"trainer.max_steps={STEPS}", f"trainer.threads={THREADS}"),
        *("evaluation=none", "checkpoint=none"),
    ]
    if workload.row_tokens is not None:
        given.append(f"trainer.tokens_per_microbatch={workload.row_tokens}")
    return [*given, "peft=lora", f"peft.path={inputs}/adapter"] if workload.lora_rank else given


def composed(arguments: list[str]) -> RunConfig:
    """The config that `python -m rlexp.train ARGUMENTS` would run."""
    register_all()
    plugins.install()
    resolvers.register()
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        return checked_config(compose("config", overrides=arguments))


def main(pipe: Connection, workload: Workload, inputs: Path, scratch: Path, extra: tuple[str, ...], record: bool) -> None:
    """Run until told to stop. extra: overrides of the user. record: keep rollouts and gradient of the first batch in scratch."""
    config = composed([*overrides(workload, inputs), *extra])
    build.prepare_torch(config, 1)
    strategy = registry.STRATEGIES.load(config.strategy.name)(config.strategy)
    folder = RunFolder(scratch / "run", fresh=True)
    folder.path.mkdir(parents=True, exist_ok=True)
    trainer, _ = build.build(config, folder, strategy)
    trainer.parts.log = Journal(config, folder, trainer.parts.total_steps)
    recorder = Recorder(pipe)
    listen(trainer, recorder)
    if record:
        keep_first(trainer, scratch)
    recorder.ready(parameters=sum(parameter.numel() for parameter in trainer.parts.trainables["policy"].parameters))
    try:
        trainer.run()
    except Stop:
        trainer.parts.evaluator.player.close()


def listen(trainer: Trainer, recorder: Recorder) -> None:
    """Hook the recorder into the loop: before a batch is made, at its rewards, and at each optimizer step."""
    parts: Any = trainer.parts  # functions of objects are replaced
    source, rewards = parts.source, parts.evaluator.player.rewards
    make, score, optimize = source.next, rewards.score, parts.runner.optimize

    def next_batch(state: Any) -> Any:
        recorder.arrive()
        batch = make(state)
        recorder.generation = batch.seconds["generation"]
        recorder.count("generated", batch.generated_tokens)
        return batch

    async def scored(rollouts: Any, state: Any) -> Any:
        found = await score(rollouts, state)
        recorder.rewarded()
        return found

    def optimized(step: Any, rate: float) -> dict[str, float]:
        norms = optimize(step, rate)
        recorder.optimized()
        recorder.count("forwarded", step.forwarded_tokens)
        recorder.count("trained", step.trained_tokens)
        rows = [micro_batch.row for micro_batches in step.micro_batches.values() for micro_batch in micro_batches]
        recorder.count("pairs", sum(int(np.sum(row.depth_T + 1)) for row in rows))
        recorder.count("micro_batches", len(rows))
        return norms

    source.next, rewards.score, parts.runner.optimize = next_batch, scored, optimized


def keep_first(trainer: Trainer, scratch: Path) -> None:
    """Write completions.npz and gradient.safetensors of the first step, for the other side to repeat."""
    parts: Any = trainer.parts
    source, strategy = parts.source, parts.runner.strategy
    make, step = source.next, strategy.step
    named = trainer.parts.trainables["policy"].network.module.named_parameters()
    parameters = {name: parameter for name, parameter in named if parameter.requires_grad}

    def next_batch(state: Any) -> Any:
        batch = make(state)
        source.next = make
        ids = [[int(token) for turn in rollout.turns for token in turn.ids] for rollout in batch.rollouts]
        np.savez(scratch / "completions.npz", lengths=[len(one) for one in ids], ids=np.concatenate([np.array(one) for one in ids]))
        return batch

    def first_step(*arguments: Any) -> float:
        save_file({name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}, scratch / "gradient.safetensors")
        strategy.step = step
        norm: float = step(*arguments)
        return norm

    source.next, strategy.step = next_batch, first_step
