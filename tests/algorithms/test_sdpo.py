"""algorithm=sdpo before the first forward: what each teacher is shown, its sequences, metrics, warnings and hooks."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdpo_batches import LOADED, QUESTION, RENDERER, answer, groups, sdpo

from rlexp.algorithms.hints import Hint, hints
from rlexp.algorithms.sdpo import SDPO, taught
from rlexp.batching.terms import Terms, flatten
from rlexp.config.errors import UserError
from rlexp.config.sdpo import FEEDBACK, REPROMPT, SOLUTION, SDPOConfig
from rlexp.data.tasks import TaskData
from rlexp.losses.self_distillation import SCALE
from rlexp.records.reprompt import Templates
from rlexp.records.rollout import GenerationBatch
from rlexp.records.sample import Sample

TEMPLATES = Templates(REPROMPT, SOLUTION, FEEDBACK)


def shown(batch: GenerationBatch, **options: Any) -> list[tuple[int | None, str | None]]:
    """For each rollout the index of the solution within its group, and the feedback."""
    return [(None if hint.solution is None else hint.solution.index, hint.feedback) for hint in hints(batch, SDPOConfig(**options), 0)]


NONE = (None, None)


@pytest.mark.rows("SDPO-026", "SDPO-027", "SDPO-028", "SDPO-029", "SDPO-042")
def test_the_first_success_of_the_group_is_shown_to_those_that_failed() -> None:
    batch = groups([0.0, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0])
    assert shown(batch) == [(1, None), NONE, (1, None), NONE, *[NONE] * 4]
    assert shown(batch, success_reward_threshold=0.5)[:4] == [(1, None), NONE, NONE, NONE]
    assert shown(batch, success_reward_threshold=1.5) == [NONE] * 8
    assert shown(batch, use_successful_as_teacher=False) == [NONE] * 8
    batch.groups[0].rollouts[1].reward = math.nan
    assert shown(batch)[:4] == [(3, None), (3, None), (3, None), NONE], "an unscored rollout is no success"


@pytest.mark.rows("SDPO-029")
def test_successful_rollouts_have_no_teacher_unless_asked_for() -> None:
    batch = groups([0.0, 1.0, 1.0])
    assert shown(batch, dont_reprompt_on_self_success="others") == [(1, None), (2, None), (1, None)]
    assert shown(batch, dont_reprompt_on_self_success="own") == [(1, None), (1, None), (1, None)]
    alone = groups([0.0, 1.0])
    assert shown(alone, dont_reprompt_on_self_success="others") == [(1, None), NONE]


def test_a_drawn_demonstration_depends_on_seed_group_and_rollout_only() -> None:
    batch = groups([0.0] * 12 + [1.0] * 4)
    drawn = [index for index, _ in shown(batch, demonstration="random")[:12]]
    assert set(drawn) == {12, 13, 14, 15}
    assert drawn == [index for index, _ in shown(batch, demonstration="random")[:12]]
    config = SDPOConfig(demonstration="random")
    assert [hint.solution.index for hint in hints(batch, config, 1)[:12]] != drawn  # type: ignore[union-attr]


@pytest.mark.rows("SDPO-025", "SDPO-030", "SDPO-031")
def test_feedback_is_shown_when_asked_for() -> None:
    batch = groups([0.0, 1.0], [0.0, 0.0], feedback="too low")
    assert shown(batch) == [(1, None), NONE, NONE, NONE]
    assert shown(batch, include_environment_feedback=True) == [(1, "too low"), NONE, (None, "too low"), (None, "too low")]
    only = {"include_environment_feedback": True, "environment_feedback_only_without_solution": True}
    assert shown(batch, **only) == [(1, None), NONE, (None, "too low"), (None, "too low")]
    assert [hint.available for hint in hints(batch, SDPOConfig(), 0)] == [True] * 4
    for nothing in ("", "  \n", 3, None):
        blank = groups([0.0, 0.0], feedback=nothing)
        assert hints(blank, SDPOConfig(include_environment_feedback=True), 0) == [Hint(), Hint()]


@pytest.mark.rows("SDPO-118")
def test_feedback_may_be_another_column_or_logged_by_a_reward() -> None:
    batch = groups([0.0, 0.0, 0.0], feedback="of the task")
    batch.rollouts[1].extra = {"privileged_context": "of the rollout", "hint": None}
    batch.rollouts[2].task["hint"] = "other column"
    assert [text for _, text in shown(batch, include_environment_feedback=True)] == ["of the task", "of the rollout", "of the task"]
    assert [text for _, text in shown(batch, include_environment_feedback=True, feedback_column="hint")] == [None, None, "other column"]


# sequences


def prompt_of(solution: str | None, feedback: str | None = None) -> list[int]:
    return RENDERER.render(TEMPLATES.filled(QUESTION, solution, feedback)).ids.tolist()


@pytest.mark.rows("SDPO-033", "SDPO-039", "SDPO-041")
def test_the_teacher_reads_its_prompt_and_the_same_completion() -> None:
    batch = groups([0.0, 1.0, 0.0])
    samples = sdpo().samples(batch)
    assert [sample.rollout for sample in samples] == [0, 2], "with distillation alone, a rollout without a teacher is not forwarded"
    for sample, rollout in zip(samples, (batch.rollouts[0], batch.rollouts[2]), strict=True):
        context = sample.companions["teacher"]
        assert context.ids.tolist() == [*prompt_of("011"), *rollout.turns[0].ids]
        assert context.ids[context.position_L + 1].tolist() == sample.target_L.tolist() == rollout.turns[0].ids.tolist()


@pytest.mark.rows("SDPO-039")
def test_beside_a_policy_part_rollouts_without_a_teacher_are_forwarded_too() -> None:
    batch = groups([0.0, 1.0, 0.0], [0.0, 0.0, 0.0])
    samples = sdpo(distillation_weight=0.5).samples(batch)
    assert [(sample.rollout, taught(sample)) for sample in samples] == [(0, True), (1, False), (2, True)], "the flat group has no signal of either kind"
    assert samples[1].companions["teacher"].ids.tolist() == samples[1].ids[:1].tolist()
    with_kl = sdpo(distillation_weight=0.5, beta=0.1).samples(batch)
    assert [sample.rollout for sample in with_kl] == [0, 1, 2, 3, 4, 5]


@pytest.mark.rows("SDPO-004")
def test_each_part_is_left_out_at_its_end() -> None:
    none = sdpo(distillation_weight=0.0, beta=0.1)
    assert none.needs.companions == none.needs.before == {"reference"} and not none.needs.beside and not none.own_columns
    assert all(not sample.companions for sample in none.samples(groups([0.0, 1.0])))
    only = sdpo(beta=0.1)
    assert only.needs.companions == only.needs.beside == {"teacher"} and not only.needs.before
    both = sdpo(distillation_weight=0.5, beta=0.1)
    assert both.needs.companions == {"reference", "teacher"} and both.needs.beside == {"teacher"} and both.needs.before == {"reference"}


@pytest.mark.rows("SDPO-034")
@pytest.mark.parametrize("longest", [10, 45])
def test_a_long_teacher_prompt_loses_its_first_tokens(longest: int) -> None:
    batch = groups([0.0, 1.0])
    (sample,) = sdpo(max_reprompt_len=longest).samples(batch)
    context = sample.companions["teacher"]
    assert context.ids.tolist() == [*prompt_of("011")[-longest:], *batch.rollouts[0].turns[0].ids]
    assert context.ids[context.position_L + 1].tolist() == sample.target_L.tolist()


def test_prompt_and_completion_fit_the_context() -> None:
    algorithm = sdpo()
    algorithm.context = 50
    (sample,) = algorithm.samples(groups([0.0, 1.0]))
    assert len(sample.companions["teacher"].ids) == 50


@pytest.mark.rows("SDPO-032", "SDPO-033")
def test_solutions_are_texts_without_thinking_on_request() -> None:
    batch = groups([0.0, 1.0])
    batch.rollouts[1].completion_text = "<think>{x}\n</think> 46"
    (plain,) = sdpo().samples(batch)
    (removed,) = sdpo(remove_thinking_from_demonstration=True).samples(batch)
    completion = batch.rollouts[0].turns[0].ids.tolist()
    assert plain.companions["teacher"].ids.tolist() == [*prompt_of("<think>{x}\n</think> 46"), *completion]
    assert removed.companions["teacher"].ids.tolist() == [*prompt_of("46"), *completion]


@pytest.mark.rows("SDPO-040")
def test_conversations_keep_their_chat_template() -> None:
    batch = groups([0.0, 1.0])
    for group in batch.groups:
        group.rollouts[:] = [answer("46", rollout.reward, 0, rollout.index, conversational=True) for rollout in group.rollouts]
    (sample,) = sdpo().samples(batch)
    text = RENDERER.decode(sample.companions["teacher"].ids, special=True)
    assert text == f"<|im_start|>user\n{TEMPLATES.filled(QUESTION, '46', None)}<|im_end|>\n<|im_start|>assistant\n46<|im_end|>"


@pytest.mark.rows("SDPO-113")
def test_a_conversation_that_ends_otherwise_is_refused_before_training() -> None:
    data = TaskData([{"prompt": "p"}, {"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}], [], "")
    with pytest.raises(UserError, match="training task 1: its last message is from the assistant"):
        sdpo().prepare(RENDERER, 256, data)
    sdpo(distillation_weight=0.0).prepare(RENDERER, 256, data)
    sdpo(teacher_context="prompt", teacher_model_kind="base").prepare(RENDERER, 256, data)


def test_a_teacher_may_read_the_policys_own_prompt() -> None:
    batch = groups([0.0, 0.0])
    for sample in sdpo(teacher_context="prompt", teacher_model_kind="base").samples(batch):
        assert sample.companions["teacher"].ids.tolist() == sample.ids.tolist()
        assert sample.companions["teacher"].position_L.tolist() == sample.position_L.tolist()


@pytest.mark.rows("SDPO-047")
def test_truncated_completions_leave_the_distillation_but_are_shown() -> None:
    batch = groups([0.0, 1.0, 0.0])
    for index in (1, 2):
        batch.rollouts[index].turns[0].finish = "length"
    samples = sdpo(loss_options={"mask_truncated_completions": True}).samples(batch)
    assert [sample.rollout for sample in samples] == [0]
    assert prompt_of("011") == samples[0].companions["teacher"].ids[: len(prompt_of("011"))].tolist()


# advantages, scale, metrics


def begun(algorithm: SDPO, batch: GenerationBatch, steps: int = 1) -> tuple[list[Sample], Terms]:
    samples = algorithm.samples(batch)
    terms = flatten(samples)
    terms.step_R = np.arange(len(batch.rollouts)) * steps // len(batch.rollouts)
    algorithm.advantages(batch, samples, terms)
    return samples, terms


@pytest.mark.rows("SDPO-043")
def test_advantages_of_the_policy_part() -> None:
    batch = groups([0.0, 1.0, 0.0, 1.0])
    begun(sdpo(distillation_weight=0.5, scale_rewards="none"), batch)
    assert [rollout.advantage for rollout in batch.rollouts] == [-0.5, 0.5, -0.5, 0.5], "no scaling at all, where the source divides by 1.0001"


@pytest.mark.rows("SDPO-015")
def test_every_rollout_of_the_step_counts_unless_only_active_ones_are_to() -> None:
    batch = groups([0.0, 1.0, 0.0], [0.0, 0.0, 0.0])
    samples, terms = begun(sdpo(), batch)
    lengths = [sample.terms for sample in samples]
    assert terms.extra[SCALE] == pytest.approx([1 / (6 * n) for n in lengths for _ in range(n)])
    _, terms = begun(sdpo(distillation_normalize="active"), batch)
    assert terms.extra[SCALE] == pytest.approx([1 / (2 * n) for n in lengths for _ in range(n)])
    _, terms = begun(sdpo(), batch, steps=2)
    assert terms.extra[SCALE] == pytest.approx([1 / (3 * n) for n in lengths for _ in range(n)])


@pytest.mark.rows("SDPO-095", "SDPO-096", "SDPO-097")
def test_metrics_of_a_batch() -> None:
    batch = groups([0.0, 1.0, 0.5], [0.0, 0.0, 0.0], feedback="hint")
    batch.rollouts[3].task["privileged_context"] = " "
    batch.rollouts[5].rewards["r"] = None
    begun(sdpo(include_environment_feedback=True, environment_feedback_only_without_solution=True), batch)
    found = {name.removeprefix("self_distillation/"): total / count for name, (total, count) in batch.metrics.items()}
    assert found == pytest.approx(
        {
            "success_group_fraction": 1 / 2,
            "success_sample_fraction": 2 / 6,
            "feedback_available_fraction": 5 / 6,
            "feedback_used_fraction": 2 / 6,
            "reprompt_sample_fraction": 4 / 6,
            "reward_mean": 1.5 / 6,
            "reward_std": np.std([0, 1, 0.5, 0, 0, 0], ddof=1),
            "reward_min": 0.0,
            "reward_max": 1.0,
            "group_reward_std_mean": 0.25,
            "flat_group_fraction": 0.5,
            "rewards/r": 1.5 / 5,
        }
    )


@pytest.mark.rows("SDPO-100", "SDPO-101", "SDPO-102")
def test_batches_that_teach_nothing_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = sdpo(diagnostics_warning_interval=3)

    def warned(batch: GenerationBatch) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            begun(algorithm, batch)
        words = {"rewards of all rollouts are equal": "flat", "nothing is distilled": "inactive", "no rollout reached": "no success"}
        return sorted(word for record in caplog.records for text, word in words.items() if text in record.getMessage())

    flat, failed, fine = groups([0.0, 0.0]), groups([0.0, 0.5]), groups([0.0, 1.0])
    assert warned(flat) == ["flat", "inactive", "no success"]
    assert warned(failed) == []
    assert warned(failed) == ["inactive", "no success"]
    assert warned(flat) == ["flat"], "the first in a row again"
    assert warned(fine) == []
    assert warned(groups([1.0, 1.0])) == ["flat", "inactive"]
    kept = algorithm.state_dict()
    other = sdpo(diagnostics_warning_interval=3)
    other.load_state_dict(kept)
    assert other.diagnostics.counts == algorithm.diagnostics.counts == {"flat_rewards": 1, "inactive": 1, "no_success": 0}
    algorithm = sdpo(diagnostics_warning_interval=0)
    assert warned(flat) == []


WATCHER = """
seen = []
class Watcher:
    def on_generation_prompts_selected(self, **payload): seen.append(("prompts", payload))
    def on_generation_batch_built(self, **payload): seen.append(("built", payload))
    def on_teacher_context_built(self, **payload): seen.append(("context", payload))
    def on_self_distillation_batch_prepared(self, **payload): seen.append(("prepared", payload))
class Deaf: pass
"""


@pytest.mark.rows("SDPO-104", "SDPO-105", "SDPO-106", "SDPO-107")
def test_hooks_see_each_batch(tmp_path: Path) -> None:
    (tmp_path / "watcher.py").write_text(WATCHER)
    path = str(tmp_path / "watcher.py")
    algorithm = sdpo(distillation_weight=0.5, num_iterations=3, hooks=[f"{path}:Watcher", f"{path}:Deaf"])
    batch = groups([0.0, 1.0, 0.0, 0.0])
    samples, _ = begun(algorithm, batch, steps=2)
    seen = dict(type(algorithm.hooks.objects[0]).on_generation_batch_built.__globals__["seen"])
    assert list(seen) == ["prompts", "built", "context", "prepared"]
    assert seen["built"] == {"generate_every": 6, "steps_per_generation": 2}
    assert seen["context"]["self_distillation_mask"].tolist() == [1, 0, 1, 1]
    assert [ids.tolist() for ids in seen["context"]["teacher_input_ids"]] == [
        (sample.companions["teacher"].ids if taught(sample) else sample.ids).tolist() for sample in samples
    ]
    assert [len(mask) for mask in seen["context"]["teacher_attention_mask"]] == [len(ids) for ids in seen["context"]["teacher_input_ids"]]
    prepared = seen["prepared"]
    assert [ids.tolist() for ids in prepared["completion_ids"]] == [rollout.turns[0].ids.tolist() for rollout in batch.rollouts]
    assert [ids.tolist() for ids in prepared["prompt_ids"]] == [rollout.turns[0].prompt_ids.tolist() for rollout in batch.rollouts]
    assert prepared["old_per_token_logps"] is None
    with pytest.raises(UserError, match=r"algorithm\.hooks=.*there is no function Nobody"):
        sdpo(hooks=[f"{path}:Nobody"])


def test_the_model_of_these_tests_has_room() -> None:
    assert len(prompt_of("011", "hint")) < LOADED.context
