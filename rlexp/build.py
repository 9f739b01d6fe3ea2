"""Configuration to objects: everything a run is made of, in the order it is needed."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from rlexp import registry
from rlexp.algorithms.base import Algorithm
from rlexp.chat.rendering import Renderer
from rlexp.config.derived import accuracy_term, correction_mode, schedule, too_few_tasks
from rlexp.config.errors import UserError
from rlexp.config.model import LoraConfig
from rlexp.config.plan import plan_text
from rlexp.config.run import RunConfig
from rlexp.config.saved import load_changed, load_config
from rlexp.data.overlong import fit_prompts
from rlexp.data.tasks import TaskData, TaskOrder, seed_of
from rlexp.distributed.skeleton import is_skeleton, put
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.generation.base import sampling_from
from rlexp.generation.start import start_generator
from rlexp.launch.folder import RunFolder
from rlexp.launch.signals import PAUSED_CODE, PREEMPTED_CODE, stop_request
from rlexp.launch.threads import thread_count
from rlexp.losses.correction import Correction
from rlexp.models.float32_head import use_float32_head
from rlexp.models.hub import load_folder
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.models.prepare import prepared
from rlexp.models.router import router_coefficient
from rlexp.records.state import TrainerState
from rlexp.rewards.runner import RewardRunner
from rlexp.rollout.ahead import ReadAhead
from rlexp.rollout.player import Player
from rlexp.tracking.journal import Journal
from rlexp.training import checkpoint
from rlexp.training.evaluation import Evaluator
from rlexp.training.finish import model_folder, save_models, summary_of
from rlexp.training.silent import SilentLog
from rlexp.training.step import StepRunner
from rlexp.training.trainables import autocast_dtype, build_network, build_networks
from rlexp.training.trainer import Parts, Trainer

log = logging.getLogger(__name__)

EXIT_CODES = {"finished": 0, "preempted": PREEMPTED_CODE, "paused": PAUSED_CODE, "stopped": PAUSED_CODE}
"""how a run ended -> exit code of its rank processes"""
NOT_TRAINED = ("rollout.prompts_per_batch=1", "trainer.steps_per_batch=1", "trainer.oversize_samples=drop")
"""an evaluation neither fills batches nor packs rows, so whatever these say must not refuse its tasks"""


def prepare_torch(config: RunConfig, world: int) -> int:
    """Threads and determinism of this process. Returns the number of threads."""
    threads = thread_count(config, world)
    torch.set_num_threads(threads)
    if config.run.deterministic:
        torch.use_deterministic_algorithms(True)
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed, which transformers imports to save a model, warns that it had to guess
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()  # in a file, a bar is a line for each of its states
    return threads


def build_model(config: RunConfig, device: torch.device) -> LoadedModel:
    """The policy's model and tokenizer, with its adapter if it has one, on its device."""
    return prepared(registry.MODELS.load(config.model.name)(config.model, seed=config.run.seed), config, device)


def build_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm with its policy loss."""
    loss = registry.LOSSES.load(config.loss.name)
    algorithm = registry.ALGORITHMS.load(config.algorithm.name)(config.algorithm, config.loss, loss)
    correction = config.correction
    if (mode := correction_mode(config)) != "none":
        algorithm.use_correction(Correction(mode, correction.clip_min, correction.clip_max, correction.normalize))
    algorithm.seed = config.run.seed
    algorithm.reward_weights = {key: term.weight for key, term in config.reward.terms.items()}
    return algorithm


def build_data(config: RunConfig) -> TaskData:
    """Training and held-out tasks."""
    data = registry.DATA.load(config.data.name)(config.data, seed=seed_of(config.data, config.run.seed))
    if problem := too_few_tasks(config, data.count):
        raise UserError(problem)
    return data


def fit_data(config: RunConfig, data: TaskData, renderer: Renderer, loaded: LoadedModel) -> tuple[TaskData, int]:
    """Treat prompts that are too long as data.overlong_prompt says. Returns the data and the length of the longest prompt."""
    longest, mode = config.data.max_prompt_length, config.data.overlong_prompt
    context = min(loaded.context, getattr(config.generation, "max_model_length", None) or loaded.context)
    return fit_prompts(data, lambda prompt: renderer.render(prompt).ids, context=context, max_length=longest, mode=mode)


def check_rows(config: RunConfig, longest: int, loaded: LoadedModel, algorithm: Algorithm) -> None:
    """Refuse rollouts that could fit no row, before long work starts. longest: the longest prompt."""
    row, completion = config.trainer.tokens_per_microbatch, config.rollout.max_completion_length
    possible = min(longest + completion, loaded.context)
    if possible > row and config.trainer.oversize_samples == "error":
        raise UserError(
            f"a rollout may have {possible} tokens (longest prompt {longest} + rollout.max_completion_length={config.rollout.max_completion_length}), "
            f"{possible} > {row}: raise trainer.tokens_per_microbatch={row}, lower rollout.max_completion_length, or set trainer.oversize_samples=drop"
        )
    with_teacher = min(algorithm.longest_teacher_prompt(longest, completion) + completion, loaded.context)
    if with_teacher > row and config.trainer.oversize_samples == "error":
        raise UserError(
            f"a completion behind the teacher's prompt may have {with_teacher} tokens, {with_teacher} > trainer.tokens_per_microbatch={row}: raise it, lower "
            "algorithm.max_reprompt_len or rollout.max_completion_length, or set trainer.oversize_samples=drop"
        )


def build_rewards(config: RunConfig, data: TaskData, strategy: SingleStrategy) -> RewardRunner:
    """The reward terms, checked against the columns of the tasks; models among them are spread over the ranks."""
    with strategy.loading():
        rewards = RewardRunner(config.reward, rollout=config.rollout)
    rewards.check_columns(set(data.columns or ()))
    spread_rewards(rewards, strategy)
    return rewards


def spread_rewards(rewards: RewardRunner, strategy: SingleStrategy) -> None:
    """Give each rank its part of the models that score, or the whole, on its device."""
    for model in rewards.models:
        put(model.module, strategy.load_device)
        strategy.place(model.module)
        model.in_parts = strategy.sharded


def build_player(
    config: RunConfig,
    policies: dict[str, LoadedModel],
    renderer: Renderer,
    rewards: RewardRunner,
    algorithm: Algorithm,
    data: TaskData,
    strategy: SingleStrategy,
    networks: Mapping[str, Network],
    folder: Path | None = None,
) -> Player:
    """Generator, agent loop and rewards together: what plays tasks, for training and evaluation. networks: around the policies; folder: of the run."""
    collectives, autocast = strategy.collectives, autocast_dtype(config, strategy.device)
    opened = (lambda policy: strategy.opened(networks[policy])) if strategy.sharded else None
    generator, sync = start_generator(config.generation, policies, collectives, autocast=autocast, folder=folder, opened=opened)
    lacking = algorithm.needs.sampler - generator.provides
    if lacking:
        raise UserError(
            f"algorithm={config.algorithm.name} needs {', '.join(sorted(lacking))} of the sampler, which generation={config.generation.name} does not give"
        )
    return Player(
        config.rollout,
        generator=generator,
        renderer=renderer,
        rewards=rewards,
        seed=config.run.seed,
        collectives=collectives,
        agents=algorithm.agents,
        agent_loop=algorithm.agent_loop,
        prompt_limit=data.prompt_limit,
        sync=sync,
        sampling=lambda: strategy.sampling(list(networks.values()) if sync is None else [], [model.module for model in rewards.models]),
    )


def build(config: RunConfig, folder: RunFolder, strategy: SingleStrategy) -> tuple[Trainer, LoadedModel]:
    """A trainer at the start of its run. What a user may have got wrong comes first, the model after it."""
    collectives = strategy.collectives
    if config.run.start_from and checkpoint.latest(folder.checkpoints_path) is None:
        checkpoint.resolve(config.run.start_from)
    algorithm = build_algorithm(config)
    data = build_data(config)
    rewards = build_rewards(config, data, strategy)
    steps = schedule(config, data.count).steps
    if steps is None:
        raise UserError("trainer.max_steps is not set, and the number of tasks of a stream is unknown: set trainer.max_steps")
    if collectives.rank == 0:
        planned = config
        if collectives.world != config.cluster.processes:  # torchrun decides by itself how many there are
            planned = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, nodes=1, processes_per_node=collectives.world))
        log.info("%s", plan_text(planned, data.count))
    with strategy.loading():
        loaded = build_model(config, strategy.load_device)
    router = None if is_skeleton(loaded.module) else router_coefficient(loaded.module, config.loss.router_aux_loss_coef)  # found by a forward
    if balance := collectives.gather_objects(router)[0]:
        algorithm.use_router(balance)
    renderer = Renderer(loaded.tokenizer, config.generation.chat_template_kwargs, config.data.system_prompt)
    data, longest = fit_data(config, data, renderer, loaded)
    algorithm.prepare(renderer, loaded.context, data)
    check_rows(config, longest, loaded, algorithm)
    with strategy.loading():
        trainables = build_networks(config, algorithm, loaded, strategy)
    networks = {policy: trainables[policy].network for policy in dict.fromkeys(algorithm.agents.values())}
    policies = {policy: dataclasses.replace(loaded, module=network.module) for policy, network in networks.items()}
    player = build_player(config, policies, renderer, rewards, algorithm, data, strategy, networks, folder.path)
    if config.generation.scores:
        algorithm.use_scorer(player.generator.score)  # type: ignore[attr-defined]
    order = TaskOrder(data, seed=seed_of(config.data, config.run.seed), shuffle=config.data.shuffle, prompts_per_batch=config.rollout.prompts_per_batch)
    if collectives.rank == 0 and order.left_over:
        log.warning("%d tasks of each epoch fill no batch of rollout.prompts_per_batch=%d and are left out", order.left_over, config.rollout.prompts_per_batch)
    sampling = sampling_from(config.generation)
    source = registry.ROLLOUTS.load(config.rollout.name)(
        config.rollout,
        order=order if data.sized else ReadAhead(order),
        player=player,
        sampling=sampling,
        num_generations=config.algorithm.num_generations,
    )
    source.greedy_baseline = algorithm.greedy_baseline
    dropout = not config.model.disable_dropout or getattr(config.peft, "dropout", 0.0) > 0
    parts = Parts(
        source=source,
        algorithm=algorithm,
        trainables=trainables,
        runner=StepRunner(trainables, algorithm, strategy, seed=config.run.seed, dropout=dropout, dumps=folder.path / "dumps"),
        evaluator=Evaluator(config.evaluation, player, data.held_out, sampling, accuracy_term(config) or ""),
        log=SilentLog(),
        collectives=collectives,
        folder=folder.path,
        total_steps=steps,
        stop_requested=lambda: stop_request().requested or (collectives.rank == 0 and folder.stopped),
        fingerprint=data.fingerprint,
    )
    return Trainer(config, parts), loaded


def resume(config: RunConfig, folder: RunFolder, trainer: Trainer, rank: int) -> None:
    """Continue from the folder's newest checkpoint, or start, from run.start_from if given. metrics.jsonl is cut back to match."""
    newest = checkpoint.latest(folder.checkpoints_path)
    if newest is not None:
        trainer.load(newest)
        log.info("continuing from step %d", trainer.progress.step)
    elif config.run.start_from:
        networks = {name: trainable.network for name, trainable in trainer.parts.trainables.items()}
        checkpoint.load_weights(checkpoint.resolve(config.run.start_from), networks)
        trainer.restart_companions()
    if rank == 0 and (warning := folder.truncate_metrics(trainer.progress.metrics_bytes, trainer.progress.step)):
        log.warning(warning)


def run(config: RunConfig, folder: RunFolder, *, rank: int, world: int) -> int:
    """One rank of a run, from start to end. Returns the exit code."""
    threads = prepare_torch(config, world)
    if rank == 0 and (warning := folder.record_threads(threads)):
        log.warning(warning)
    strategy = registry.STRATEGIES.load(config.strategy.name)(config.strategy)
    trainer, loaded = build(config, folder, strategy)
    resume(config, folder, trainer, rank)
    journal: Journal | SilentLog = Journal(config, folder, trainer.parts.total_steps, trainer.progress.step) if rank == 0 else SilentLog()
    trainer.parts.log = journal
    summary = None
    try:
        status = trainer.run()
        if status == "preempted" and not stop_request().requested and folder.stopped:
            status = "stopped"  # by its user, not by a signal: its sweep leaves it alone from now on
        journal.flush()  # what cannot be written fails the run before it is called finished
        summary = summary_of(trainer, status)
        conclude(config, folder, trainer, loaded, summary)
    finally:
        journal.finish(0 if summary else 1, summary)
        trainer.parts.evaluator.player.close()
    strategy.collectives.barrier()
    strategy.close()
    return EXIT_CODES[status]


def conclude(config: RunConfig, folder: RunFolder, trainer: Trainer, loaded: LoadedModel, summary: dict[str, Any]) -> None:
    """The summary, and the final model of a finished run."""
    if summary["status"] == "finished":
        save_models(config, trainer, loaded, folder.path)
    if trainer.parts.collectives.rank == 0:
        folder.write_summary(summary)


def evaluate_run(folder: Path, name: str | None, overrides: Sequence[str]) -> dict[str, float]:
    """Metrics of a run's weights on its held-out tasks, and the step they are from (python -m rlexp.evaluate). One process, whatever the run had.

    name: a checkpoint (rlexp.training.checkpoint.find); None: the newest, or the final model of a run that kept none. overrides: changes
    of the run's config for this evaluation. Raises UserError.
    """
    own = load_config(folder / "config.yaml")
    config = load_changed(folder / "config.yaml", [*NOT_TRAINED, *overrides])
    prepare_torch(config, 1)
    strategy = SingleStrategy(config.strategy)
    path = checkpoint.find(folder / "checkpoints", name)
    data = registry.DATA.load(config.data.name)(config.data, seed=seed_of(config.data, config.run.seed))
    if not data.held_out:
        raise UserError("there are no held-out tasks: set data.eval_size to their number, e.g. data.eval_size=64")
    if config.data != own.data:
        warn_of_seen_tasks(own, data)
    rewards, algorithm = build_rewards(config, data, strategy), build_algorithm(config)
    policies = trained_policies(config, algorithm, folder, path, strategy.device)
    loaded = next(iter(policies.values()))
    renderer = Renderer(loaded.tokenizer, config.generation.chat_template_kwargs, config.data.system_prompt)
    data, _ = fit_data(config, data, renderer, loaded)
    player = build_player(config, policies, renderer, rewards, algorithm, data, strategy, {})
    step = int((RunFolder(folder).summary() or {}).get("steps", 0)) if path is None else int(checkpoint.meta(path)["step"])
    evaluator = Evaluator(config.evaluation, player, data.held_out, sampling_from(config.generation), accuracy_term(config) or "")
    try:
        metrics, _ = evaluator.run(TrainerState(step, config.trainer.max_steps or step, training=False))
    finally:
        player.close()
    return {"step": float(step), "tasks": float(len(data.held_out)), **metrics}


def trained_policies(config: RunConfig, algorithm: Algorithm, folder: Path, path: Path | None, device: torch.device) -> dict[str, LoadedModel]:
    """The policies of a run with the weights of a checkpoint, or of model/ when path is None."""
    names = list(dict.fromkeys(algorithm.agents.values()))
    if path is None:
        return {name: load_policy(config, model_folder(folder, name, names), device) for name in names}
    loaded = build_model(config, device)
    copies = [loaded, *(dataclasses.replace(loaded, module=copy.deepcopy(loaded.module)) for _ in names[1:])]
    networks = {name: build_network(config, algorithm.networks[name], source, device) for name, source in zip(names, copies, strict=True)}
    checkpoint.load_weights(path, networks)
    return {name: dataclasses.replace(loaded, module=network.module) for name, network in networks.items()}


def load_policy(config: RunConfig, folder: Path, device: torch.device) -> LoadedModel:
    """A final policy as save_models wrote it: a whole model, or an adapter beside its base. Raises UserError when there is none."""
    if (folder / "adapter_config.json").is_file() and isinstance(config.peft, LoraConfig):
        return build_model(dataclasses.replace(config, peft=dataclasses.replace(config.peft, path=str(folder))), device)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder.parent} has neither checkpoints nor a final model yet: let the run come to its first checkpoint (checkpoint.steps)")
    loaded = load_folder(folder, config.model, seed=config.run.seed, label=folder.name)
    if config.model.cast_lm_head_to_fp32:
        use_float32_head(loaded.module)
    loaded.module.to(device)
    return loaded


def warn_of_seen_tasks(own: RunConfig, data: TaskData) -> None:
    """Say how many of the tasks to evaluate on the run was trained on. own: the run's config; data: what it is evaluated on, which is not its own."""
    try:
        trained = registry.DATA.load(own.data.name)(own.data, seed=seed_of(own.data, own.run.seed))
    except UserError as error:
        log.warning("the run's own data cannot be read (%s), so it is not known whether it was trained on these tasks", error)
        return
    prompts = {json.dumps(task["prompt"], sort_keys=True) for task in (trained.train if trained.sized else ())}
    seen = sum(json.dumps(task["prompt"], sort_keys=True) in prompts for task in data.held_out)
    if seen:
        log.warning("the run was trained on %d of these %d tasks: the numbers below are no held-out ones", seen, len(data.held_out))
