"""What can be wrong with the keys of algorithm=sdpo, and what is allowed but probably not meant. Torch-free; see validate.py and advice.py."""

from __future__ import annotations

import string
from collections.abc import Iterator

from rlexp.config import derived
from rlexp.config.run import RunConfig
from rlexp.config.sdpo import PLACES, SDPOConfig


def problems(config: RunConfig) -> Iterator[str]:
    """Rows SDPO-108 to SDPO-113: one sentence each, with the keys and the fix."""
    settings = config.algorithm
    if not isinstance(settings, SDPOConfig):
        return
    yield from _distillation(settings)
    yield from _teacher(config, settings)
    yield from _server(config, settings)
    for key, places in PLACES.items():
        yield from _template(key, getattr(settings, key), places)


def _distillation(settings: SDPOConfig) -> Iterator[str]:
    mode = settings.distillation_mode
    if mode == "sampled_token" and settings.distillation_alpha != 1:
        yield (
            f"algorithm.distillation_alpha={settings.distillation_alpha:g} needs distributions, and algorithm.distillation_mode=sampled_token has the reverse "
            "KL of single tokens only: set it to 1, or choose full_logits or topk_logits"
        )
    if mode == "topk_logits" and settings.distillation_topk is None:
        yield "algorithm.distillation_mode=topk_logits needs algorithm.distillation_topk, e.g. 100"
    if mode == "topk_logits":
        return
    for key, given in (
        ("distillation_topk", settings.distillation_topk is not None),
        ("distillation_add_tail", settings.distillation_add_tail),
        ("distillation_support", settings.distillation_support != "student"),
    ):
        if given:
            yield f"algorithm.{key} is for algorithm.distillation_mode=topk_logits, not {mode}: leave it out"


def _teacher(config: RunConfig, settings: SDPOConfig) -> Iterator[str]:
    kind, weight = settings.teacher_model_kind, settings.distillation_weight
    if kind == "model" and settings.teacher_path is None:
        yield "algorithm.teacher_model_kind=model needs algorithm.teacher_path, a hub id or folder"
    if kind != "model" and settings.teacher_path is not None:
        yield f"algorithm.teacher_path has no effect with algorithm.teacher_model_kind={kind}: set algorithm.teacher_model_kind=model"
    if settings.teacher_context == "prompt" and kind == "live":
        yield "algorithm.teacher_context=prompt with algorithm.teacher_model_kind=live compares the policy with itself: choose another one of either"
    if weight == 1 and config.correction.name not in ("auto", "none"):
        yield f"correction={config.correction.name} weights the policy term, which algorithm.distillation_weight=1 leaves out: set correction=none"
    sources = settings.use_successful_as_teacher or settings.include_environment_feedback
    if weight > 0 and settings.teacher_context == "reprompt" and not sources:
        yield (
            "algorithm.use_successful_as_teacher=false and algorithm.include_environment_feedback=false leave nothing to show to the teacher: set one to true, "
            "or algorithm.distillation_weight=0"
        )


def _server(config: RunConfig, settings: SDPOConfig) -> Iterator[str]:
    """Row SDPO-111: each condition of row SDPO-090 that is not met."""
    if not settings.use_teacher_server:
        return
    conditions = (
        (config.generation.scores, f"generation=vllm_server, not {config.generation.name}"),
        (settings.teacher_model_kind == "live", f"algorithm.teacher_model_kind=live, not {settings.teacher_model_kind}: the server holds the policy's weights"),
        (settings.distillation_weight == 1, f"algorithm.distillation_weight=1, not {settings.distillation_weight:g}"),
        (settings.distillation_mode != "full_logits", "algorithm.distillation_mode=sampled_token or topk_logits: a server gives no whole distributions"),
        (derived.sampling_value(config, "temperature") == 1, "generation.temperature=1, at which the server scores"),
        (
            config.trainer.steps_per_batch * settings.num_iterations == 1,
            "trainer.steps_per_batch=1 and algorithm.num_iterations=1: the server scores a batch once, before the weights move",
        ),
    )
    for met, text in conditions:
        if not met:
            yield f"algorithm.use_teacher_server=true needs {text}"


def _template(key: str, template: str, places: tuple[str, ...]) -> Iterator[str]:
    try:
        found = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    except ValueError as error:
        yield f"algorithm.{key}: {error}; a literal brace is written twice"
        return
    missing, unknown = [place for place in places if place not in found], sorted(found - set(places))
    if missing:
        yield f"algorithm.{key} has no {' and no '.join(f'{{{place}}}' for place in missing)}: put it where the text belongs"
    if unknown:
        yield f"algorithm.{key} has the unknown place {' and '.join(f'{{{place}}}' for place in unknown)}: a literal brace is written twice"


def warnings(config: RunConfig) -> Iterator[str]:
    """What is allowed but probably not meant."""
    settings = config.algorithm
    if not isinstance(settings, SDPOConfig):
        return
    if settings.distillation_weight == 1 and settings.beta:
        yield f"algorithm.beta={settings.beta:g} has no effect with algorithm.distillation_weight=1, which leaves out the policy part and its KL"
    if settings.teacher_model_kind != "ema":
        for key in ("teacher_update_rate", "teacher_sync_steps"):
            if getattr(settings, key) != getattr(SDPOConfig, key):
                yield f"algorithm.{key}={getattr(settings, key)} has no effect with algorithm.teacher_model_kind={settings.teacher_model_kind}"
    if settings.environment_feedback_only_without_solution and not settings.include_environment_feedback:
        yield "algorithm.environment_feedback_only_without_solution=true has no effect without algorithm.include_environment_feedback=true"
