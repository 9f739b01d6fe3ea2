"""Everything that can be wrong with a typed config, found in one pass before anything is loaded.

Bounds and choices stand in the fields. What involves several keys is a list of small rules here; each returns its problems, naming
the keys and the fix.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator

from rlexp.config import (
    algorithm,
    algorithms,
    derived,
    generation,
    reward,
    validate_cluster,
    validate_generation,
    validate_sdpo,
    validate_strategy,
    validate_sweep,
)
from rlexp.config.fields import problems_of
from rlexp.config.model import LoraConfig
from rlexp.config.names import name_problem
from rlexp.config.run import RunConfig
from rlexp.config.suggest import closest, did_you_mean

Rule = Callable[[RunConfig], Iterator[str]]

PACKAGES: dict[tuple[str, str], tuple[str, str]] = {
    ("model", "smollm2_135m"): ("gguf", "rlexp[gguf]"),
    ("peft", "lora"): ("peft", "rlexp[peft]"),
    ("data", "reasoning_gym"): ("reasoning_gym", "rlexp[gym]"),
    ("reward", "reasoning_gym"): ("reasoning_gym", "rlexp[gym]"),
    ("reward", "accuracy"): ("math_verify", "rlexp[math]"),
    ("tracker", "wandb"): ("wandb", "wandb"),
    ("tracker", "tensorboard"): ("tensorboard", "tensorboard"),
    ("strategy", "deepspeed_zero3"): ("deepspeed", "rlexp[deepspeed]"),
}
"""(group, option) -> the module it needs beyond the core and what to install for it"""

EVALUATION_METRICS = (
    "accuracy",
    "reward",
    "reward_std",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/clipped_ratio",
)
"""Metrics of every evaluation; each reward term adds rewards/<key>/mean and /std, sampled completions add pass@k"""


def _packages(config: RunConfig) -> Iterator[str]:
    options = [("model", config.model.name), ("peft", config.peft.name), ("data", config.data.name)]
    options += [("reward", term.name) for term in config.reward.terms.values()]
    options += [("tracker", term.name) for term in config.tracker.terms.values()]
    for group, name in dict.fromkeys(options):
        module, extra = PACKAGES.get((group, name), ("", ""))
        if module and importlib.util.find_spec(module) is None:
            yield f"{group}={name} needs the package {module}, which is not installed: pip install '{extra}'"


def _run(config: RunConfig) -> Iterator[str]:
    for key, name in (("run.name", config.run.name), ("run.experiment", config.run.experiment), ("sweep.name", config.sweep.name)):
        wrong = name_problem(name) if name is not None else None
        if wrong:
            yield f"{key}={name} {wrong}"


def _batch(config: RunConfig) -> Iterator[str]:
    prompts, generations, steps = config.rollout.prompts_per_batch, config.algorithm.num_generations, config.trainer.steps_per_batch
    rollouts = prompts * generations
    if steps > rollouts or rollouts % steps:
        yield (
            f"trainer.steps_per_batch={steps} does not divide rollout.prompts_per_batch={prompts} x algorithm.num_generations={generations} "
            f"= {rollouts}: the rollouts of a batch are cut into steps of equally many; choose a divisor of {rollouts}"
        )
    too_few = derived.too_few_tasks(config, derived.most_tasks(config))
    if too_few:
        yield too_few
    if getattr(config.data, "streaming", False) and config.trainer.max_steps is None:
        yield "data.streaming=true needs trainer.max_steps: a stream has no length, so trainer.epochs cannot end the run"


def _lengths(config: RunConfig) -> Iterator[str]:
    if config.trainer.oversize_samples != "error":
        return
    completion, budget = config.rollout.max_completion_length, config.trainer.tokens_per_microbatch
    prompt = (config.data.max_prompt_length or 1) if config.data.overlong_prompt != "error" else 1
    if prompt + completion > budget:
        yield (
            f"a sample of {prompt} prompt + rollout.max_completion_length={completion} = {prompt + completion} tokens is possible and does not fit "
            f"trainer.tokens_per_microbatch={budget}: {prompt + completion} > {budget}; raise the latter, or trainer.oversize_samples=drop"
        )


def _loss(config: RunConfig) -> Iterator[str]:
    loss = config.loss
    level = getattr(loss, "importance_sampling_level", None)
    if loss.level and level is not None and level != loss.level:
        yield f"loss.importance_sampling_level={level} contradicts loss={loss.name}, which is defined for {loss.level}: leave the key out or set {loss.level}"
    delta, epsilon = getattr(loss, "delta", None), getattr(loss, "epsilon", None)
    if delta is not None and epsilon is not None and delta <= 1 + epsilon:
        yield f"loss.delta={delta:g} must exceed 1 + loss.epsilon = {1 + epsilon:g}: it bounds the ratio above the clipped range"


def _covariance(config: RunConfig) -> Iterator[str]:
    low, high = getattr(config.loss, "cov_low", None), getattr(config.loss, "cov_high", None)
    if low is not None and high is not None and low >= high:
        yield f"loss.cov_low={low:g} must be below loss.cov_high={high:g}: no token is between them"


def _entropy(config: RunConfig) -> Iterator[str]:
    loss = config.loss
    if loss.entropy_coef_min > loss.entropy_coef_max:
        yield f"loss.entropy_coef_min={loss.entropy_coef_min:g} is above loss.entropy_coef_max={loss.entropy_coef_max:g}: exchange them"


def _correction(config: RunConfig) -> Iterator[str]:
    """Rows GRPO-061, GRPO-062, GRPO-063, GRPO-261, GRPO-263, GRPO-265."""
    settings, mode, generation = config.correction, derived.correction_mode(config), config.generation
    low, high = settings.clip_min, settings.clip_max
    if low is not None and high is not None and low >= high:
        yield f"correction.clip_min={low:g} must be below correction.clip_max={high:g}"
    if mode.endswith("truncate") and low is None and high is None:
        yield f"correction={mode} has no bound to clamp to: set correction.clip_max or correction.clip_min"
    if mode.startswith("sequence") and config.loss.takes_correction:
        yield f"correction={mode} does not go with loss={config.loss.name}, whose weight is already of whole rollouts: use token_truncate or token_mask"
    if mode != "none" and config.loss.ratio_to_sampler:
        yield f"correction={mode} does not go with loss={config.loss.name}, whose ratio is to the sampler already: set correction=none"
    if settings.normalize and not mode.startswith("sequence"):
        yield f"correction.normalize=true is for the sequence modes, and the correction is {mode}: leave it out, or set correction=sequence_mask"
    penalty, cut = derived.sampling_value(config, "repetition_penalty"), derived.truncated(config)
    if mode != "none" and penalty != 1:
        yield f"generation.repetition_penalty={penalty:g} changes the sampler's log-probs, which cannot be corrected: set correction=none"
    if mode != "none" and generation.candidates == "top_k" and cut and not any("top_k" in option for option in cut):
        yield f"{cut[0]} with correction={mode} needs generation.top_k > 0 (e.g. 512), which bounds the candidates that generation={generation.name} returns"


def _algorithm(config: RunConfig) -> Iterator[str]:
    clip = getattr(config.algorithm, "reward_clip_range", None)
    if clip is not None and (len(clip) != 2 or clip[0] >= clip[1]):
        yield f"algorithm.reward_clip_range={clip} must be [lowest, highest] with lowest < highest, e.g. [-1, 1]"
    if getattr(config.algorithm, "multi_objective_aggregation", "") == "normalize_then_sum":
        for key, given in (
            ("reward_clip_range", clip is not None),
            ("kl_in=reward", config.algorithm.beta > 0 and getattr(config.algorithm, "kl_in", "") == "reward"),
        ):
            if given:
                yield f"algorithm.{key} acts on the total reward, which algorithm.multi_objective_aggregation=normalize_then_sum does not form: leave it out"
    if isinstance(config.algorithm, algorithms.ReMaxConfig) and not isinstance(config.rollout, generation.SyncRolloutConfig):
        yield f"algorithm=remax needs greedy rollouts, which rollout={config.rollout.name} does not play: set rollout=sync"
    sets = config.algorithm.k if isinstance(config.algorithm, algorithms.GRPOPassKConfig) else 0
    if sets > config.algorithm.num_generations:
        yield f"algorithm.k={sets} is larger than algorithm.num_generations={config.algorithm.num_generations}: there would be no set of so many rollouts"


def _reference(config: RunConfig) -> Iterator[str]:
    """Row GRPO-270."""
    settings = config.algorithm
    if not isinstance(settings, algorithm.PolicyGradientConfig):
        return
    for key, wanted in (("sync_ref_model=true", settings.sync_ref_model), ("kl_target", settings.kl_target is not None)):
        if wanted and settings.beta == 0:
            yield f"algorithm.{key} needs algorithm.beta > 0: without a KL there is no reference model"
    if settings.sync_ref_model and config.peft.name != "none":
        yield f"algorithm.sync_ref_model=true does not go with peft={config.peft.name}, whose reference is the model without its adapter: leave one out"


def _refill(config: RunConfig) -> Iterator[str]:
    """Dynamic sampling drops groups with equal totals, which must be those that teach nothing."""
    settings = config.algorithm
    if not getattr(config.rollout, "refill", False):
        return
    if settings.num_generations < 2:
        yield "rollout.refill=true needs algorithm.num_generations >= 2: a group of one has no rewards that could differ"
    if getattr(settings, "distillation_weight", 0.0) > 0:
        yield f"rollout.refill=true would drop groups that algorithm={settings.name} learns from, whose rewards are equal: leave it out"
    whole_batch = isinstance(settings, (algorithms.ReinforceConfig, algorithms.ReinforcePPConfig, algorithms.ReMaxConfig))
    if whole_batch or getattr(settings, "multi_objective_aggregation", "") == "normalize_then_sum":
        yield f"rollout.refill=true would drop groups that algorithm={settings.name} learns from, which compares more than totals within a group: leave it out"


def _generation(config: RunConfig) -> Iterator[str]:
    if any(not text for text in config.generation.stop):
        yield "generation.stop holds an empty string, which would end every completion at once: leave it out"


def _reward(config: RunConfig) -> Iterator[str]:
    terms = config.reward.terms
    if not terms:
        yield "reward has no term: choose at least one, e.g. reward=[exact_match]"
    elif all(term.weight == 0 for term in terms.values()):
        yield "every reward.terms.<key>.weight is 0: no rollout would ever be better than another; give one a weight"
    for key, term in terms.items():
        if isinstance(term, reward.OverlongRewardConfig):
            longest = term.max_length if term.max_length is not None else config.rollout.max_completion_length
            where = f"reward.terms.{key}.max_length" if term.max_length is not None else "rollout.max_completion_length"
            if term.buffer > longest:
                yield f"reward.terms.{key}.buffer={term.buffer} is larger than {where}={longest}: every completion would be punished; make it smaller"


def _peft(config: RunConfig) -> Iterator[str]:
    if not isinstance(config.peft, LoraConfig):
        return
    if not config.peft.targets:
        yield "peft.targets is empty: name the modules that get an adapter, e.g. peft.targets=[all-linear]"
    for target in config.peft.targets:
        if target.rsplit(".", 1)[-1] in ("lm_head", "score"):
            yield f"peft.targets={config.peft.targets} puts an adapter on the head ({target}), which is not supported: leave it out"


def _evaluation(config: RunConfig) -> Iterator[str]:
    terms, accuracy = config.reward.terms, config.evaluation.accuracy
    if accuracy is not None and accuracy not in terms:
        yield f"evaluation.accuracy={accuracy} is not a reward term{did_you_mean(closest(accuracy, terms))} (there are: {', '.join(terms) or 'none'})"
    metrics = [] if config.checkpoint.name == "none" or config.checkpoint.keep_best == 0 else [("checkpoint.metric", config.checkpoint.metric)]
    metrics += [("sweep.metric", config.sweep.metric)] if config.sweep.method == "halving" else []
    known = [*EVALUATION_METRICS, *(f"rewards/{key}/{part}" for key in terms for part in ("mean", "std"))]
    only_ours = all(type(term).__module__ == reward.__name__ and not isinstance(term, reward.CustomRewardConfig) for term in terms.values())
    for key, metric in metrics if derived.evaluates(config) else []:
        if only_ours and metric not in known and not metric.startswith("pass@"):
            yield f"{key}={metric} is no metric of the evaluation{did_you_mean(closest(metric, known))} (there are: {', '.join(known)})"
        if metric.startswith("pass@") and config.evaluation.num_generations == 0:
            yield f"{key}={metric} needs sampled completions: evaluation.num_generations > 0"


RULES: tuple[Rule, ...] = (
    _packages,
    _run,
    _batch,
    _lengths,
    _loss,
    _covariance,
    _entropy,
    _correction,
    _algorithm,
    _reference,
    validate_sdpo.problems,
    _refill,
    _generation,
    validate_generation.problems,
    _reward,
    validate_strategy.problems,
    validate_cluster.problems,
    _peft,
    _evaluation,
    validate_sweep.problems,
)


def bounds(config: RunConfig) -> list[str]:
    """Values outside the bounds or choices of their fields, and required keys that are not set, in the sections that are there."""
    problems = []
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        if dataclasses.is_dataclass(section):
            problems += problems_of(section, f"{field.name}.")
    return problems


def problems(config: RunConfig) -> list[str]:
    """Every problem of a typed config. Rules over several keys run once each key by itself is right."""
    return bounds(config) or [problem for rule in RULES for problem in rule(config)]
