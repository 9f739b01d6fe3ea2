"""Self-distillation policy optimisation: the policy learns from what it says itself when it has seen a success of its group, or feedback.

A teacher (a moving average of the policy, the policy itself, its first weights, or another model) reads each completion behind the task's
prompt with a solution and feedback put into it, and the policy's next-token distributions are pulled towards the teacher's. A sparse reward
becomes a signal for every token. Source: TRL 1.16.0, trl.experimental.sdpo; docs/differences_from_trl.md says where and why this differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlexp.algorithms.base import Objective, Scorer
from rlexp.algorithms.diagnostics import PREFIX, Diagnostics, batch_numbers
from rlexp.algorithms.grpo import GRPO
from rlexp.algorithms.hints import Hint, hints
from rlexp.algorithms.hooks import Hooks
from rlexp.batching.terms import SUPPORT, Terms
from rlexp.chat.rendering import Renderer
from rlexp.chat.reprompt import Templates, check_last_message, reprompted, without_thinking
from rlexp.chat.samples import samples_of
from rlexp.config.algorithm import LossConfig
from rlexp.config.errors import UserError
from rlexp.config.sdpo import SDPOConfig
from rlexp.data.tasks import TaskData
from rlexp.losses.correction import Correction
from rlexp.losses.self_distillation import SCALE, SERVER_LOGP, SERVER_SUPPORT, SelfDistillationObjective, distillation_scale
from rlexp.models.distillation import DISTILLATION, SUPPORT_LOGP, TEACHER, Distillation, support_logp
from rlexp.records.rollout import GenerationBatch, Rollout
from rlexp.records.sample import Context, Needs, Sample

log = logging.getLogger(__name__)


class SDPO(GRPO):
    """distillation_weight 1 leaves out the policy part (advantages, KL, reference), 0 the teacher."""

    config: SDPOConfig

    def __init__(self, config: SDPOConfig, loss_config: LossConfig, loss: Callable[..., Any]) -> None:
        self.distils, self.has_policy = config.distillation_weight > 0, config.distillation_weight < 1
        super().__init__(config if self.has_policy else replace(config, beta=0.0), loss_config, loss)
        self.needs_every_group = self.needs_every_group and self.has_policy
        self._total = SelfDistillationObjective(config, self._objective)
        self.templates = Templates(config.reprompt_template, config.solution_template, config.feedback_template)
        self.diagnostics, self.hooks = Diagnostics(config), Hooks(config.hooks, "algorithm.hooks")
        self.hints: list[Hint] = []
        self.renderer: Renderer | None = None
        self.context = self.added = 0
        self.scorer: Scorer | None = None
        if self.distils:
            self.own_columns = {SUPPORT_LOGP: support_logp} if config.use_teacher_server else {DISTILLATION: Distillation.of(config)}
            self._choose_teacher()

    def _choose_teacher(self) -> None:
        kind, config = self.config.teacher_model_kind, self.config
        if kind == "ema":
            self.companion_moves = {**self.companion_moves, TEACHER: (config.teacher_update_rate, config.teacher_sync_steps)}
        elif kind == "live":
            self.live_companions = frozenset({TEACHER})
        elif kind == "model":
            assert config.teacher_path is not None
            self.companion_paths = {TEACHER: config.teacher_path}

    def _find_needs(self) -> None:
        super()._find_needs()
        needs = self.needs
        if not self.has_policy:
            needs = Needs(columns=needs.columns)
        if self.distils and self.config.use_teacher_server:
            more = {SUPPORT_LOGP} if self.config.distillation_topk is not None else set()
            needs = replace(needs, columns={"policy": needs.columns["policy"] | more})
        elif self.distils:
            columns = {"policy": needs.columns["policy"] | {DISTILLATION}}
            needs = replace(needs, columns=columns, beside=frozenset({TEACHER}), companions=needs.companions | {TEACHER})
        self.needs = needs

    def prepare(self, renderer: Renderer, context: int, data: TaskData) -> None:
        """Refuse conversations that do not end with the user's message, before anything is sampled."""
        self.renderer, self.context = renderer, context
        if not self.distils or self.config.teacher_context == "prompt":
            return
        longest_feedback = 0
        for index, task in enumerate(data.train if data.sized else ()):
            check_last_message(task["prompt"], f"training task {index}")
            text = task.get(self.config.feedback_column)
            if self.config.include_environment_feedback and isinstance(text, str):
                longest_feedback = max(longest_feedback, len(renderer.tokenizer(text, add_special_tokens=False)["input_ids"]))
        frame = self.templates.filled("", "", "" if self.config.include_environment_feedback else None)
        self.added = len(renderer.tokenizer(frame, add_special_tokens=False)["input_ids"]) + longest_feedback
        if self.config.include_environment_feedback and data.columns is not None and self.config.feedback_column not in data.columns:
            log.warning("the tasks have no column algorithm.feedback_column=%s: there is feedback only if a reward logs it", self.config.feedback_column)

    def longest_teacher_prompt(self, prompt: int, completion: int) -> int:
        """Prompt, templates, a solution as long as the longest completion and the tasks' longest feedback; at most max_reprompt_len."""
        return min(prompt + self.added + completion, self.config.max_reprompt_len) if self.added else 0

    def use_scorer(self, scorer: Scorer) -> None:
        """The server that says what the teacher would."""
        self.scorer = scorer

    def use_correction(self, correction: Correction) -> None:
        """Its weights multiply the policy term; distillation alone has none."""
        if not self.has_policy:
            raise UserError(f"correction={correction.mode}: with algorithm.distillation_weight=1 there is no policy term to weight; set correction=none")
        super().use_correction(correction)

    def use_router(self, coef: float) -> None:
        """The loss of the routers is one over all tokens and belongs to neither part."""
        self._total.router_coef, self.needs_every_group = coef, True
        self._find_needs()
        self.needs = replace(self.needs, columns={"policy": self.needs.columns["policy"] | {"router"}})

    def objective(self, model: str) -> Objective:
        """Both parts with their weights."""
        return self._total

    # samples

    def samples(self, batch: GenerationBatch) -> list[Sample]:
        """Those of all rollouts that carry a signal for the policy part, or that a teacher speaks of; with the teacher's sequences."""
        if not self.distils:
            return super().samples(batch)
        self.hints = hints(batch, self.config, self.seed)
        samples: list[Sample] = []
        number = 0
        for group in batch.groups:
            wanted = self.needs_every_group or (self.has_policy and not self.idle(group))
            for rollout in group.rollouts:
                taught = self.config.teacher_context == "prompt" or self.hints[number].active
                if (wanted or taught) and self.trained_tokens(rollout):
                    made = self.samples_of_rollout(rollout, number) if self.has_policy else samples_of(rollout, number, rollout.policy)
                    for place, sample in enumerate(made):
                        sample.companions[TEACHER] = self.teacher_sequence(rollout, sample, self.hints[number]) if taught and not place else nothing(sample)
                    samples.extend(made)
                number += 1
        return samples

    def teacher_sequence(self, rollout: Rollout, sample: Sample, hint: Hint) -> Context:
        """The teacher's prompt followed by the same completion ids, term for term.

        Too long a prompt loses its first tokens, so that it has at most max_reprompt_len and the model's context holds the completion too.
        A fork of a rollout with several turns has no teacher: its prompt is not the task's.
        """
        own = rollout.turns[0].prompt_ids
        completion = sample.ids[len(own) :]
        prompt = own if self.config.teacher_context == "prompt" else self.teacher_prompt(rollout, hint)
        room = min(self.config.max_reprompt_len, self.context - len(completion))
        prompt = prompt[max(0, len(prompt) - room) :]
        return Context(np.concatenate([prompt, completion]), sample.position_L + len(prompt) - len(own))

    def teacher_prompt(self, rollout: Rollout, hint: Hint) -> np.ndarray:
        """Token ids of the task's prompt with the solution and feedback of the hint."""
        assert self.renderer is not None
        solution = None
        if hint.solution is not None:
            solution = hint.solution.completion_text
            if self.config.remove_thinking_from_demonstration:
                solution = without_thinking(solution, hint.solution.prompt_text)
        return self.renderer.render(reprompted(rollout.task["prompt"], self.templates, solution, hint.feedback)).ids

    # before the first step of a batch

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """Those of GRPO for the policy part; scale of the distillation, metrics, warnings and hooks."""
        super().advantages(batch, samples, terms)
        if not self.distils:
            return
        mask_L = np.repeat(np.array([taught(sample) for sample in samples], bool), np.diff(terms.offsets_S)) & terms.active_L
        counted_R = np.array([bool(self.models_of(rollout)) for rollout in batch.rollouts], bool)
        if self.config.use_teacher_server:
            self._ask_server(samples, terms)
        terms.extra[SCALE] = distillation_scale(mask_L, terms.rollout_L, terms.step_R, counted_R, self.config.distillation_normalize)
        numbers = batch_numbers(batch, self.hints, self.config)
        batch.metrics.update({f"{PREFIX}/{name}": (value, 1.0) for name, value in numbers.items()})
        self.diagnostics.take(numbers)
        if self.hooks.objects:
            self._call_hooks(batch, samples, terms)

    def _ask_server(self, samples: Sequence[Sample], terms: Terms) -> None:
        """Fill terms.extra with what the server says of each term of the taught samples, and with the support that it chose.

        Raises UserError when it gives no number for a term.
        """
        assert self.scorer is not None
        top_k = self.config.distillation_topk
        numbers = [number for number, sample in enumerate(samples) if taught(sample)]
        scores = self.scorer("policy", [samples[number].companions[TEACHER].ids for number in numbers], top_k)
        logp_L = np.zeros(terms.count)
        support_LC, teacher_LC = np.zeros((terms.count, top_k or 0)), np.zeros((terms.count, top_k or 0))
        for number, score in zip(numbers, scores, strict=True):
            mine, place = slice(terms.offsets_S[number], terms.offsets_S[number + 1]), samples[number].companions[TEACHER].position_L
            logp_L[mine] = score.logprobs[place]
            if top_k is not None:
                support_LC[mine], teacher_LC[mine] = score.top_ids[place], score.top_logprobs[place]
        if not np.isfinite(logp_L).all():
            raise UserError("the generation server gave no log-prob for a token of the teacher (algorithm.use_teacher_server): set it to false")
        terms.extra[SERVER_LOGP] = logp_L
        if top_k is not None:
            terms.extra[SUPPORT], terms.extra[SERVER_SUPPORT] = support_LC, teacher_LC

    def masks(self, batch: GenerationBatch, terms: Terms) -> None:
        """Those of the policy part."""
        if self.has_policy:
            super().masks(batch, terms)

    def _call_hooks(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """The source's events with its payloads, lists of arrays in place of padded batches. One entry for each sample that is forwarded."""
        steps = int(terms.step_R.max(initial=0)) + 1
        teacher = [sample.companions[TEACHER] if taught(sample) else None for sample in samples]
        inputs: dict[str, Any] = {
            "teacher_input_ids": [sample.ids if context is None else context.ids for sample, context in zip(samples, teacher, strict=True)],
            "self_distillation_mask": np.array([float(context is not None) for context in teacher]),
        }
        inputs["teacher_attention_mask"] = [np.ones(len(ids), np.int64) for ids in inputs["teacher_input_ids"]]
        starts = [len(batch.rollouts[sample.rollout].turns[0].prompt_ids) for sample in samples]
        completions = [sample.ids[start:] for sample, start in zip(samples, starts, strict=True)]
        old = terms.columns.get("old")
        parts = None if old is None else [old[start:end] for start, end in zip(terms.offsets_S, terms.offsets_S[1:], strict=False)]
        self.hooks.call("on_generation_prompts_selected", generation_prompts=[rollout.prompt for rollout in batch.rollouts], generation_prompt_text=None)
        self.hooks.call("on_generation_batch_built", generate_every=steps * self.config.num_iterations, steps_per_generation=steps)
        self.hooks.call("on_teacher_context_built", completion_mask=[np.ones(len(ids), np.int64) for ids in completions], **inputs)
        prompts = [sample.ids[:start] for sample, start in zip(samples, starts, strict=True)]
        payload = {"prompt_ids": prompts, "completion_ids": completions, "old_per_token_logps": parts}
        self.hooks.call("on_self_distillation_batch_prepared", **payload, **inputs)

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Beside that of the policy part, how many batches in a row taught nothing."""
        return {**super().state_dict(), "diagnostics": dict(self.diagnostics.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""
        super().load_state_dict(state)
        self.diagnostics.counts.update(state["diagnostics"])


def nothing(sample: Sample) -> Context:
    """The teacher's sequence of a sample without a teacher: one position, which all such samples of a row share."""
    return Context(sample.ids[:1], np.zeros(sample.terms, np.int64))


def taught(sample: Sample) -> bool:
    """Whether a sample has a teacher's sequence of its own."""
    return TEACHER in sample.companions and len(sample.companions[TEACHER].ids) > 1
