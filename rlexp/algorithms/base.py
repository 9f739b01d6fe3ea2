"""What the loop asks of an algorithm. Algorithms hold no models: they get columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from rlexp.batching.terms import Terms
from rlexp.chat.rendering import Renderer
from rlexp.chat.samples import samples_of
from rlexp.config.errors import UserError
from rlexp.data.tasks import TaskData
from rlexp.losses.correction import Correction
from rlexp.losses.inputs import LossInputs
from rlexp.losses.objective import ObjectiveResult
from rlexp.models.columns import Column
from rlexp.models.network import Network
from rlexp.records.rollout import GenerationBatch, Group, Rollout
from rlexp.records.sample import Needs, Sample

Objective = Callable[[LossInputs], ObjectiveResult]
Scorer = Callable[[str, Sequence[np.ndarray], int | None], Sequence[Any]]
"""(policy, sequences, top_k) -> a score for each: logprobs [n - 1], top_ids and top_logprobs [n - 1, k]"""


class Algorithm:
    """One trained policy, samples that are the rollouts themselves. Subclasses add advantages and the objective.

    Class attributes say what the loop builds: `networks` (trained networks by name), `agents` (agent -> policy that plays it).
    """

    networks: ClassVar[dict[str, type[Network]]] = {"policy": Network}
    agents: ClassVar[dict[str, str]] = {"policy": "policy"}
    agent_loop: Any = None
    """how a task becomes rollouts; None is a single turn"""
    companion_moves: Mapping[str, tuple[float, int]] = MappingProxyType({})
    """by companion: the share of the network it takes over, and after how many steps each; absent is frozen"""
    live_companions: frozenset[str] = frozenset()
    """companions that are the trained network itself, not a copy"""
    companion_paths: Mapping[str, str] = MappingProxyType({})
    """companions that are another model: name -> hub id or folder"""
    own_columns: Mapping[str, Column] = MappingProxyType({})
    """columns of its own by name, beside those of rlexp.models.columns"""
    needs = Needs()
    greedy_baseline = False
    """whether the rollout source also plays each task greedily, for Group.baseline"""
    mask_truncated = False
    seed = 0
    """of the run, for draws of its own; set when the run is built"""
    needs_every_group = False
    """whether idle groups are forwarded too, because entropies of all tokens count"""
    reward_weights: Mapping[str, float] = MappingProxyType({})
    """by reward term; set when the run is built"""

    def trained_tokens(self, rollout: Rollout) -> int:
        """Loss terms of a rollout (|o_i|): counted for reductions whether or not its samples reach a forward."""
        if rollout.dropped or (self.mask_truncated and rollout.truncated):
            return 0
        return sum(len(turn.ids) if turn.trained is None else int(turn.trained.sum()) for turn in rollout.turns)

    def models_of(self, rollout: Rollout) -> Sequence[str]:
        """The trained networks that a rollout counts for, with samples or (idle, truncated) without."""
        return () if rollout.dropped else (rollout.policy,)

    def idle(self, group: Group) -> bool:
        """Whether every term of the loss is exactly zero for this group, so that it need not be forwarded."""
        return False

    def samples(self, batch: GenerationBatch) -> list[Sample]:
        """Samples of all groups that carry a signal, in order of rollouts."""
        samples: list[Sample] = []
        number = 0
        for group in batch.groups:
            skip = not self.needs_every_group and self.idle(group)
            for rollout in group.rollouts:
                if not skip and self.trained_tokens(rollout):
                    samples.extend(self.samples_of_rollout(rollout, number))
                number += 1
        return samples

    def samples_of_rollout(self, rollout: Rollout, number: int) -> list[Sample]:
        """The samples of one rollout for all networks it trains."""
        return samples_of(rollout, number, rollout.policy)

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        """Fill `advantage` of each rollout and `terms.advantage_L`. Scored columns are in `terms.columns`."""
        raise NotImplementedError

    def masks(self, batch: GenerationBatch, terms: Terms) -> None:
        """Fill `terms.extra` with masks and scales that need the scored columns of whole steps (`terms.step_L`); called after advantages."""

    def prepare(self, renderer: Renderer, context: int, data: TaskData) -> None:
        """Called once when the run is built, before anything is sampled: what makes prompts, the model's context in tokens, and the tasks."""

    def longest_teacher_prompt(self, prompt: int, completion: int) -> int:
        """Most tokens of a prompt that a companion reads in place of one of `prompt` tokens; completion: the longest one. 0: companions read the samples."""
        return 0

    def use_scorer(self, scorer: Scorer) -> None:
        """Called once when the run is built, if the generator tells the log-probs of given ids under its weights."""

    def use_correction(self, correction: Correction) -> None:
        """Weight the policy term for a sampler whose probabilities differ; called once when the run is built, if there is a correction."""
        raise UserError(f"correction={correction.mode}: this algorithm has no policy term to weight; set correction=none")

    def use_router(self, coef: float) -> None:
        """Add the load-balancing loss of a mixture-of-experts model with this weight; called once when the run is built, if it is not 0."""
        raise UserError("the model balances the load of its experts, which this algorithm does not: set loss.router_aux_loss_coef=0")

    def reduction(self, model: str) -> str:
        """Name of the reduction of a network's terms (rlexp.losses.reduction)."""
        raise NotImplementedError

    def objective(self, model: str) -> Objective:
        """What turns a row's columns into this network's part of the loss."""
        raise NotImplementedError

    def after_step(self, totals: dict[str, float]) -> None:
        """Called after each optimizer step with its metrics, the same on all ranks (controllers)."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what state_dict gave."""


def spread(terms: Terms, per_rollout_R: np.ndarray) -> np.ndarray:
    """A number per rollout as a number per loss term, [L]: all tokens of a rollout carry its advantage."""
    return per_rollout_R[terms.rollout_L] if terms.count else np.zeros(0)


def group_numbers(groups: Sequence[Group]) -> np.ndarray:
    """The number of its group for each rollout, int64 [R], groups laid end to end."""
    return np.repeat(np.arange(len(groups), dtype=np.int64), [len(group.rollouts) for group in groups])
