"""What the teacher is shown beside each rollout: a success of its group, feedback, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlexp.config.sdpo import SDPOConfig
from rlexp.records.keys import generator
from rlexp.records.rollout import GenerationBatch, Group, Rollout


@dataclass(frozen=True)
class Hint:
    """solution: the rollout that is shown as the correct solution. feedback: the text that is shown. available: whether there is feedback at all."""

    solution: Rollout | None = None
    feedback: str | None = None
    available: bool = False

    @property
    def active(self) -> bool:
        """Whether there is anything to show, so that the teacher's prompt differs from the policy's."""
        return self.solution is not None or self.feedback is not None


def success(rollout: Rollout, config: SDPOConfig) -> bool:
    """Whether its weighted total reward reaches the threshold (an unscored rollout's is NaN and does not)."""
    return rollout.reward >= config.success_reward_threshold


def feedback_text(rollout: Rollout, column: str) -> str | None:
    """The feedback for a rollout: what a reward logged under that name, else the task's column. None unless it is text that is not blank."""
    for text in (rollout.extra.get(column), rollout.task.get(column)):
        if isinstance(text, str) and text.strip():
            return text
    return None


def hints(batch: GenerationBatch, config: SDPOConfig, seed: int) -> list[Hint]:
    """One for each rollout, in order. A pure function: random choices are keyed by seed, group and rollout."""
    return [_hint(rollout, group, config, seed) for group in batch.groups for rollout in group.rollouts]


def _hint(rollout: Rollout, group: Group, config: SDPOConfig, seed: int) -> Hint:
    text = feedback_text(rollout, config.feedback_column)
    available = text is not None
    own = config.dont_reprompt_on_self_success
    if own == "skip" and success(rollout, config):
        return Hint(available=available)
    solution = None
    if config.use_successful_as_teacher:
        shown = [other for other in group.rollouts if success(other, config) and (own == "own" or other is not rollout)]
        solution = _chosen(shown, config.demonstration, (seed, "demonstration", *group.key, rollout.index))
    wanted = config.include_environment_feedback and not (config.environment_feedback_only_without_solution and solution is not None)
    return Hint(solution, text if wanted else None, available)


def _chosen(shown: Sequence[Rollout], how: str, key: tuple[Any, ...]) -> Rollout | None:
    if not shown:
        return None
    return shown[int(generator(*key).integers(len(shown)))] if how == "random" else shown[0]
