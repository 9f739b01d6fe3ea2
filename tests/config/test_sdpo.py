"""Keys of algorithm=sdpo: defaults, and every wrong combination at config time, without torch."""

from __future__ import annotations

from typing import Any

import pytest
from run_configs import composed, default_with

from rlexp.config.advice import warnings
from rlexp.config.correction import CorrectionConfig
from rlexp.config.errors import UserError
from rlexp.config.sdpo import FEEDBACK, REPROMPT, SOLUTION, SDPOConfig
from rlexp.config.validate import problems

DEFAULTS: dict[str, Any] = {
    "num_generations": 8,
    "num_iterations": 1,
    "beta": 0.0,
    "scale_rewards": "group",
    "distillation_weight": 1.0,
    "distillation_mode": "sampled_token",
    "distillation_alpha": 1.0,
    "distillation_topk": None,
    "distillation_add_tail": False,
    "distillation_is_clip": 2.0,
    "teacher_model_kind": "ema",
    "teacher_update_rate": 0.05,
    "teacher_sync_steps": 1,
    "use_successful_as_teacher": True,
    "success_reward_threshold": 1.0,
    "dont_reprompt_on_self_success": "skip",
    "include_environment_feedback": False,
    "environment_feedback_only_without_solution": False,
    "remove_thinking_from_demonstration": False,
    "max_reprompt_len": 10240,
    "reprompt_template": "{prompt}{solution}{feedback}\n\nCorrectly solve the original question.\n",
    "solution_template": "\nCorrect solution:\n\n{successful_previous_attempt}\n\n",
    "feedback_template": "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback_raw}\n\n",
    "diagnostics_warning_interval": 10,
    "diagnostics_flat_tolerance": 1e-8,
}


@pytest.mark.rows("SDPO-005...007", "SDPO-011...014", "SDPO-017", "SDPO-022", "SDPO-023", "SDPO-026", "SDPO-027", "SDPO-029...032", "SDPO-034...037")
@pytest.mark.rows("SDPO-043", "SDPO-044", "SDPO-061", "SDPO-100", "SDPO-101")
@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults(key: str) -> None:
    assert getattr(composed("experiment=none", "algorithm=sdpo").algorithm, key) == DEFAULTS[key]


@pytest.mark.rows("SDPO-024", "SDPO-045...047", "SDPO-049...056", "SDPO-065", "SDPO-069")
def test_defaults_of_other_groups() -> None:
    config = composed("experiment=none", "algorithm=sdpo")
    assert (config.loss.name, config.loss.epsilon, config.loss.epsilon_high) == ("dapo", 0.2, None)
    assert (config.loss.mask_truncated_completions, config.loss.importance_sampling_level) == (False, "token")
    generation = config.generation
    assert (generation.temperature, generation.top_p, generation.top_k, generation.min_p, generation.repetition_penalty) == (1.0, 1.0, 0, None, 1.0)
    assert generation.generation_kwargs is generation.chat_template_kwargs is None
    assert config.data.shuffle and config.model.disable_dropout


@pytest.mark.rows("SDPO-029")
@pytest.mark.parametrize(("given", "meaning"), [("true", "skip"), ("false", "own"), ("others", "others")])
def test_true_and_false_of_self_success(given: str, meaning: str) -> None:
    assert composed("experiment=none", "algorithm=sdpo", f"algorithm.dont_reprompt_on_self_success={given}").algorithm.dont_reprompt_on_self_success == meaning


@pytest.mark.rows("SDPO-116", "SDPO-117")
def test_usage_of_the_source_is_valid() -> None:
    """Feedback with the top 100 tokens; a teacher in the generation server."""
    base = ("experiment=none", "model=hub", "model.path=Qwen/Qwen2.5-1.5B-Instruct", "data=files", "data.path=x.jsonl", "algorithm=sdpo")
    topk = ("algorithm.distillation_mode=topk_logits", "algorithm.distillation_topk=100", "algorithm.include_environment_feedback=true")
    assert composed(*base, *topk).algorithm.feedback_column == "privileged_context"
    served = composed(*base, "generation=vllm_server", "generation.base_url=http://127.0.0.1:8000", "algorithm.teacher_model_kind=live")
    served.algorithm.use_teacher_server = True
    assert not [text for text in problems(served) if "use_teacher_server" in text]


def test_the_experiments() -> None:
    for name in ("sdpo_addition", "sdpo_smollm2"):
        assert composed(f"experiment={name}").algorithm.name == "sdpo"


def found(**options: Any) -> list[str]:
    return problems(default_with(algorithm=SDPOConfig(**options)))


TOPK: dict[str, Any] = {"distillation_mode": "topk_logits", "distillation_topk": 100}
GOOD: list[dict[str, Any]] = [
    {},
    TOPK,
    {**TOPK, "distillation_alpha": 0.5, "distillation_add_tail": True, "distillation_support": "teacher"},
    {"distillation_mode": "full_logits", "distillation_alpha": 0.0},
    {"distillation_weight": 0.0},
    {"teacher_model_kind": "model", "teacher_path": "x"},
    {"teacher_context": "prompt", "teacher_model_kind": "base"},
    {"solution_template": "{{brace}} {successful_previous_attempt}"},
    {"use_successful_as_teacher": False, "include_environment_feedback": True},
]


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_what_is_right(options: dict[str, Any]) -> None:
    assert found(**options) == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"distillation_weight": 1.5}, "algorithm.distillation_weight=1.5 is out of range"),
    ({"distillation_weight": -0.1}, "algorithm.distillation_weight=-0.1 is out of range"),
    ({"distillation_alpha": 0.5}, "algorithm.distillation_alpha=0.5 needs distributions"),
    ({"distillation_mode": "topk_logits"}, "needs algorithm.distillation_topk"),
    ({"distillation_topk": 5}, "algorithm.distillation_topk is for algorithm.distillation_mode=topk_logits"),
    ({"distillation_mode": "full_logits", "distillation_topk": 5}, "algorithm.distillation_topk is for"),
    ({"distillation_add_tail": True}, "algorithm.distillation_add_tail is for"),
    ({"distillation_support": "teacher"}, "algorithm.distillation_support is for"),
    (
        {"distillation_mode": "half_logits"},
        "algorithm.distillation_mode=half_logits is out of range: it must be one of sampled_token, full_logits, topk_logits",
    ),
    ({"teacher_model_kind": "old"}, "algorithm.teacher_model_kind=old is out of range: it must be one of ema, live, base, model"),
    ({"scale_rewards": "sum"}, "algorithm.scale_rewards=sum is out of range"),
    ({"teacher_update_rate": 0.0}, "algorithm.teacher_update_rate=0.0 is out of range"),
    ({"teacher_model_kind": "model"}, "needs algorithm.teacher_path"),
    ({"teacher_path": "x"}, "algorithm.teacher_path has no effect"),
    ({"teacher_context": "prompt", "teacher_model_kind": "live"}, "compares the policy with itself"),
    ({"use_successful_as_teacher": False}, "leave nothing to show to the teacher"),
    ({"reprompt_template": "{prompt}{solution}"}, "algorithm.reprompt_template has no {feedback}"),
    ({"solution_template": "x"}, "algorithm.solution_template has no {successful_previous_attempt}"),
    ({"solution_template": "{successful_previous_attempt} {x}"}, "algorithm.solution_template has the unknown place {x}"),
    ({"feedback_template": "nothing"}, "algorithm.feedback_template has no {feedback_raw}"),
    ({"feedback_template": "{feedback_raw} }"}, "algorithm.feedback_template: Single '}' encountered"),
]


@pytest.mark.rows("SDPO-108", "SDPO-109", "SDPO-110", "SDPO-112", "SDPO-113", "SDPO-012")
@pytest.mark.parametrize(("options", "text"), BAD, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_what_is_wrong(options: dict[str, Any], text: str) -> None:
    assert len(said := found(**options)) == 1 and text in said[0], said


def test_several_at_once() -> None:
    said = found(distillation_alpha=0.5, distillation_topk=3, feedback_template="x", teacher_path="y")
    assert len(said) == 4


@pytest.mark.rows("SDPO-112")
@pytest.mark.parametrize(("override", "text"), [("loss=daddy", "loss"), ("loss.importance_sampling_level=word", "importance_sampling_level")])
def test_unknown_losses_and_levels(override: str, text: str) -> None:
    with pytest.raises(Exception, match=text):
        composed("experiment=none", "algorithm=sdpo", override)


def test_what_other_groups_may_not_ask_for() -> None:
    config = default_with(algorithm=SDPOConfig(), correction=CorrectionConfig("token_mask"))
    assert any("correction=token_mask weights the policy term" in text for text in problems(config))
    config = default_with(algorithm=SDPOConfig(distillation_weight=0.5), rollout__refill=True)
    assert any("rollout.refill=true would drop groups that algorithm=sdpo learns from" in text for text in problems(config))
    with pytest.raises(UserError, match="reward_clip_range"):
        composed("experiment=none", "algorithm=sdpo", "algorithm.reward_clip_range=[1,0]")


ADVICE: list[tuple[dict[str, Any], str]] = [
    ({"beta": 0.1}, "algorithm.beta=0.1 has no effect with algorithm.distillation_weight=1"),
    ({"teacher_model_kind": "live", "teacher_sync_steps": 4}, "algorithm.teacher_sync_steps=4 has no effect with algorithm.teacher_model_kind=live"),
    ({"environment_feedback_only_without_solution": True}, "has no effect without algorithm.include_environment_feedback=true"),
]


@pytest.mark.parametrize(("options", "text"), ADVICE, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_advice(options: dict[str, Any], text: str) -> None:
    before = set(warnings(default_with(algorithm=SDPOConfig())))
    (said,) = set(warnings(default_with(algorithm=SDPOConfig(**options)))) - before
    assert text in said


def test_the_templates_of_the_source() -> None:
    assert tuple(DEFAULTS[f"{name}_template"] for name in ("reprompt", "solution", "feedback")) == (REPROMPT, SOLUTION, FEEDBACK)
