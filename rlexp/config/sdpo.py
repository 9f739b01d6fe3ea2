"""`algorithm=sdpo`: learning from the group's own successes and from feedback, by self-distillation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from rlexp.config.algorithm import GRPOConfig
from rlexp.config.fields import option

MODES = ("sampled_token", "full_logits", "topk_logits")
TEACHERS = ("ema", "live", "base", "model")
REPROMPT = "{prompt}{solution}{feedback}\n\nCorrectly solve the original question.\n"
SOLUTION = "\nCorrect solution:\n\n{successful_previous_attempt}\n\n"
FEEDBACK = "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback_raw}\n\n"
PLACES = {
    "reprompt_template": ("prompt", "solution", "feedback"),
    "solution_template": ("successful_previous_attempt",),
    "feedback_template": ("feedback_raw",),
}
"""template -> the places it must have"""


@dataclass
class SDPOConfig(GRPOConfig):
    """Self-distillation policy optimisation: a teacher that reads a success of the group, or feedback, says how likely each sampled token should be."""

    name: str = "sdpo"
    distillation_weight: float = option(
        1.0, "Share of the distillation in the loss; the policy loss has the rest. 1: distillation only; 0: no teacher", ge=0, le=1
    )
    distillation_mode: str = option(
        "sampled_token", "What is compared: the sampled token's log-probs, whole distributions, or those over distillation_topk tokens", choices=MODES
    )
    distillation_alpha: float = option(
        1.0,
        "1: reverse KL(student, teacher); 0: forward KL(teacher, student); between: Jensen-Shannon with this share of the teacher in the mixture",
        ge=0,
        le=1,
    )
    distillation_topk: Optional[int] = option(None, "Tokens of the support with distillation_mode=topk_logits; null for other modes", ge=1)
    distillation_support: str = option("student", "Whose most probable tokens the support holds", choices=("student", "teacher"))
    distillation_add_tail: bool = option(False, "One more outcome for all tokens outside the support; false: both sides are renormalised on it")
    distillation_is_clip: Optional[float] = option(
        2.0, "Multiply the distillation by the importance ratio to the policy that sampled, at most this; 1 in a first pass; null: no ratio", gt=0
    )
    distillation_normalize: str = option(
        "all",
        "The distillation is the mean over all rollouts of the step (those without a teacher prompt are 0), or over the active ones",
        choices=("all", "active"),
    )
    teacher_model_kind: str = option(
        "ema", "Which weights teach: a moving average of the policy's, the policy's as they are, those it started from, or another model", choices=TEACHERS
    )
    teacher_update_rate: float = option(0.05, "ema: share of the policy in the teacher after each move", gt=0, le=1)
    teacher_sync_steps: int = option(1, "ema: optimizer steps from one move of the teacher to the next", ge=1)
    teacher_path: Optional[str] = option(None, "model: hub id or local folder of the teacher, whose tokenizer must be the policy's")
    use_teacher_server: bool = option(
        False, "Ask the generation server, which holds the policy's weights, for the teacher's log-probs; the support is then the teacher's"
    )
    teacher_context: str = option(
        "reprompt",
        "What the teacher reads before the completion: the prompt with a solution or feedback, where there are such; or the policy's prompt, always",
        choices=("reprompt", "prompt"),
    )
    use_successful_as_teacher: bool = option(True, "A successful rollout of the group is the solution in the teacher's prompt")
    success_reward_threshold: float = option(1.0, "Smallest weighted total reward of a success")
    demonstration: str = option("first", "Which success of the group: the first, or one drawn for each rollout", choices=("first", "random"))
    dont_reprompt_on_self_success: str = option(
        "skip",
        "skip (or true): a successful rollout has no teacher prompt; others: only other successes are shown to it; own (or false): its own may be",
        choices=("skip", "others", "own"),
        aliases={"true": "skip", "false": "own"},
    )
    include_environment_feedback: bool = option(False, "Put the text of feedback_column into the teacher's prompt")
    feedback_column: str = option("privileged_context", "Where feedback is: a column that a reward logged for the rollout, else one of the task")
    environment_feedback_only_without_solution: bool = option(False, "Feedback only for rollouts that have no solution to show")
    remove_thinking_from_demonstration: bool = option(False, "Delete <think>...</think> from solutions")
    max_reprompt_len: int = option(10240, "Longest prompt of the teacher in tokens; of a longer one the last are kept", ge=1)
    reprompt_template: str = option(REPROMPT, "The teacher's prompt, with the places {prompt}, {solution} and {feedback}; what is not in use is empty")
    solution_template: str = option(SOLUTION, "What stands for {solution}, with the place {successful_previous_attempt}")
    feedback_template: str = option(FEEDBACK, "What stands for {feedback}, with the place {feedback_raw}")
    diagnostics_warning_interval: int = option(10, "Warn of batches that teach nothing: the first in a row, then each of these; 0: never", ge=0)
    diagnostics_flat_tolerance: float = option(1e-8, "Spread of rewards, or share of rollouts, that counts as zero in those warnings", ge=0)
    hooks: List[str] = option([], "Objects whose methods on_... are called with each batch's prompts and teacher inputs, as FILE.py:NAME or MODULE:NAME")
