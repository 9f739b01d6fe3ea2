"""What is allowed but probably not meant: printed at start and in the plan, never an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from rlexp.config import derived, validate_sdpo
from rlexp.config.algorithm import PolicyGradientConfig
from rlexp.config.run import RunConfig
from rlexp.config.training import CheckpointConfig


def _length_weighting(config: RunConfig, tasks: int | None) -> Iterator[str]:
    """Row GRPO-049: one ratio per rollout, repeated for its tokens, is weighted by their number unless the reduction averages them."""
    loss = config.loss
    level = getattr(loss, "importance_sampling_level", "token")
    if level != "token" and loss.reduction in ("tokens", "micro_batch", "rollout_constant"):
        yield f"loss.importance_sampling_level={level} with loss={loss.name} weights rollouts by their length; loss=grpo is the form of GSPO"


def _sampled_distribution(config: RunConfig, tasks: int | None) -> Iterator[str]:
    """Row GRPO-060, and penalties, whose distribution is not the policy's."""
    cut, candidates = derived.truncated(config), config.generation.candidates
    bounded = any("top_k" in option for option in cut)
    if cut and (candidates == "none" or (candidates == "top_k" and not bounded and derived.correction_mode(config) == "none")):
        yield (
            f"{', '.join(cut)}: generation={config.generation.name} does not tell which tokens were left to choose from, so the trainer cannot normalise "
            "over them and the ratio is biased"
        )
    penalty = derived.sampling_value(config, "repetition_penalty")
    if penalty != 1:
        yield f"generation.repetition_penalty={penalty:g} samples from another distribution than the one that is trained: the ratio is biased"


def _clipping_without_effect(config: RunConfig, tasks: int | None) -> Iterator[str]:
    """The first pass over a batch has ratio exactly 1, so with one step per batch nothing is ever clipped around 1."""
    if not hasattr(config.loss, "epsilon") or config.trainer.steps_per_batch * config.algorithm.num_iterations > 1:
        return
    defaults = {field.name: field.default for field in dataclasses.fields(config.loss)}
    changed = [name for name in ("epsilon", "epsilon_high", "delta") if name in defaults and getattr(config.loss, name) != defaults[name]]
    if changed:
        keys = ", ".join(f"loss.{name}" for name in changed)
        yield f"{keys} has no effect: with trainer.steps_per_batch=1 and algorithm.num_iterations=1 every ratio is 1 and nothing is clipped"


def _reference_moves(config: RunConfig, tasks: int | None) -> Iterator[str]:
    """Row GRPO-270."""
    if isinstance(config.algorithm, PolicyGradientConfig) and not config.algorithm.sync_ref_model:
        defaults = {field.name: field.default for field in dataclasses.fields(config.algorithm)}
        for name in ("ref_model_mixup_alpha", "ref_model_sync_steps"):
            if getattr(config.algorithm, name) != defaults[name]:
                yield f"algorithm.{name}={getattr(config.algorithm, name)} has no effect without algorithm.sync_ref_model=true"


def _delta(config: RunConfig, tasks: int | None) -> Iterator[str]:
    delta, high = getattr(config.loss, "delta", None), derived.epsilon_high(config)
    if delta is not None and high is not None and delta < 1 + high:
        yield f"loss.delta={delta:g} is below 1 + the upper clip range = {1 + high:g}: it also bounds rollouts with a positive advantage"


def _batches(config: RunConfig, tasks: int | None) -> Iterator[str]:
    left = derived.schedule(config, tasks).left_over
    if left and config.trainer.max_steps is None:
        yield f"{left} of {tasks} prompts per epoch do not fill a batch of rollout.prompts_per_batch={config.rollout.prompts_per_batch} and are left out of it"


def _schedule(config: RunConfig, tasks: int | None) -> Iterator[str]:
    steps = derived.schedule(config, tasks).steps
    if steps is not None and config.optimizer.warmup_steps >= steps:
        yield f"optimizer.warmup_steps={config.optimizer.warmup_steps} covers all {steps} steps: the learning rate never reaches its peak's decay"
    if config.optimizer.learning_rate == 0:
        yield "optimizer.learning_rate=0 trains nothing"


def _lengths(config: RunConfig, tasks: int | None) -> Iterator[str]:
    turn, whole = config.rollout.max_turn_length, config.rollout.max_completion_length
    if turn is not None and turn > whole:
        yield f"rollout.max_turn_length={turn} has no effect: rollout.max_completion_length={whole} ends the rollout first"


def _evaluation(config: RunConfig, tasks: int | None) -> Iterator[str]:
    steps, every = derived.schedule(config, tasks).steps, config.evaluation.steps
    if config.evaluation.name != "none" and config.data.eval_size == 0:
        yield "data.eval_size=0 leaves no held-out task: there is no evaluation (evaluation=none says the same)"
    if derived.evaluates(config) and every is not None and steps is not None and every > steps:
        yield f"evaluation.steps={every} is more than the {steps} steps of the run: it is evaluated at start and end only"
    chosen = config.checkpoint != dataclasses.replace(config.checkpoint, metric=CheckpointConfig.metric, keep_best=CheckpointConfig.keep_best)
    if chosen and config.checkpoint.name != "none" and not derived.evaluates(config):
        yield "checkpoint.metric and checkpoint.keep_best have no effect without an evaluation: only the newest checkpoints are kept"


def _processes(config: RunConfig, tasks: int | None) -> Iterator[str]:
    if config.strategy.name != "single" and config.cluster.processes == 1:
        yield f"strategy={config.strategy.name} runs with one process: cluster.processes_per_node=2 would start two"


def _sdpo(config: RunConfig, tasks: int | None) -> Iterator[str]:
    yield from validate_sdpo.warnings(config)


RULES: tuple[Callable[[RunConfig, int | None], Iterator[str]], ...] = (
    _length_weighting,
    _sampled_distribution,
    _clipping_without_effect,
    _delta,
    _reference_moves,
    _batches,
    _schedule,
    _lengths,
    _evaluation,
    _processes,
    _sdpo,
)


def warnings(config: RunConfig, tasks: int | None = None) -> list[str]:
    """One sentence for each combination that is allowed but probably not meant. tasks: training tasks, None when unknown."""
    return [text for rule in RULES for text in rule(config, tasks)]
