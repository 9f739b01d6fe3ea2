"""Small real algorithms that pull the loop in different directions: each makes a gradient of its own kind.

`ablate` in a config zeroes the component's special input (reference, teacher, value), so that a test can show that it matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from contracts.parts import two_agents
from rlexp.algorithms.base import Algorithm, Objective, group_numbers, spread
from rlexp.batching.terms import Terms
from rlexp.chat.samples import samples_of
from rlexp.losses.inputs import LossInputs
from rlexp.losses.objective import ObjectiveResult
from rlexp.models.columns import COLUMNS, Chunk
from rlexp.models.network import Network, RowTensors
from rlexp.records.keys import generator
from rlexp.records.rollout import GenerationBatch, Rollout
from rlexp.records.sample import VALUE, Context, Needs, Sample
from rlexp.records.stats import MEAN, SUM, Stat


def _sum(inputs: LossInputs, x_L: Tensor, stats: dict[str, Stat]) -> ObjectiveResult:
    loss = (inputs.where_active(inputs.scale_L) * inputs.where_active(x_L)).sum()
    return ObjectiveResult(loss, {"loss": Stat(SUM, float(loss.detach())), **stats})


# RLOO with the KL in the reward: old and reference before advantages


class RLOO(Algorithm):
    """Leave-one-out with r - beta * KL(old, reference), sequence-level clip."""

    needs = Needs(before=frozenset({"old", "reference"}), columns={"policy": frozenset({"logp"})}, companions=frozenset({"reference"}))

    def __init__(self, config: Any, loss_config: Any, loss: Any) -> None:
        self.config = config

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        reference = terms.columns["old"] if self.config.ablate else terms.columns["reference"]
        kl = np.bincount(terms.rollout_L, terms.columns["old"] - reference, minlength=len(batch.rollouts))
        rewards = np.array([rollout.reward for rollout in batch.rollouts]) - self.config.beta * kl
        numbers = group_numbers(batch.groups)
        values = np.zeros(len(rewards))
        for number in np.unique(numbers):
            mine = np.flatnonzero(numbers == number)
            for i in mine:
                values[i] = rewards[i] - rewards[mine[mine != i]].mean()
        for rollout, value in zip(batch.rollouts, values, strict=True):
            rollout.advantage = float(value)
        terms.advantage_L = spread(terms, values)

    def reduction(self, model: str) -> str:
        return "rollout_mean"

    def objective(self, model: str) -> Objective:
        return _rloo_objective


def _rloo_objective(inputs: LossInputs) -> ObjectiveResult:
    ratio_L = torch.exp(inputs.rollout_sum(inputs.logp_L - inputs.old_logp_L))[inputs.rollout_L]
    clipped_L = ratio_L.clamp(0.8, 1.2)
    return _sum(inputs, -torch.minimum(ratio_L * inputs.advantage_L, clipped_L * inputs.advantage_L), {})


# SDPO: a second sequence per sample, an EMA teacher beside each micro-batch, top-k distillation

TOP_K = 5


def _topk_divergence(chunk: Chunk) -> Tensor:
    """Reverse KL on the student's top-k support, renormalised."""
    support = chunk.logits_KV.detach().topk(TOP_K, -1).indices
    student = torch.log_softmax(chunk.logits_KV.gather(-1, support), -1)
    teacher = torch.log_softmax(chunk.companion_logits["teacher"].gather(-1, support), -1)
    return (student.exp() * (student - teacher)).sum(-1)


COLUMNS["topk_divergence"] = _topk_divergence


class SDPO(Algorithm):
    """Each completion is read again behind the best completion of its group by a slowly following copy."""

    needs = Needs(columns={"policy": frozenset({"logp", "topk_divergence"})}, beside=frozenset({"teacher"}), companions=frozenset({"teacher"}))
    companion_moves: ClassVar = {"teacher": (0.3, 1)}

    def __init__(self, config: Any, loss_config: Any, loss: Any) -> None:
        self.config = config

    def samples(self, batch: GenerationBatch) -> list[Sample]:
        self._best: dict[tuple, np.ndarray] = {}
        for group in batch.groups:
            best = max(group.rollouts, key=lambda rollout: (rollout.reward, -rollout.index))
            self._best[group.key] = best.turns[0].ids
        return super().samples(batch)

    def samples_of_rollout(self, rollout: Rollout, number: int) -> list[Sample]:
        samples = samples_of(rollout, number, rollout.policy)
        demonstration = np.zeros(0, np.int64) if self.config.ablate else self._best[rollout.group]
        for sample in samples:
            ids = np.concatenate([demonstration, sample.ids])
            sample.companions["teacher"] = Context(ids, sample.position_L + len(demonstration))
        return samples

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        terms.advantage_L = np.zeros(terms.count)

    def reduction(self, model: str) -> str:
        return "tokens"

    def objective(self, model: str) -> Objective:
        return _sdpo_objective


def _sdpo_objective(inputs: LossInputs) -> ObjectiveResult:
    divergence = inputs.columns["topk_divergence"]
    return _sum(inputs, divergence, {"divergence": Stat(MEAN, float(inputs.where_active(divergence).sum().detach()), float(inputs.active_L.sum()))})


# Two agents with separate critics: joint key, value reads as loss terms, an optimizer for each network


class ValueNetwork(Network):
    """A critic: the backbone with one number per position."""

    provides = frozenset({"value"})  # type: ignore[assignment]

    def __init__(self, loaded: Any, **kwargs: Any) -> None:
        super().__init__(loaded, **kwargs)
        causal = self.causal
        weight = next(causal.parameters())
        width = causal.config.hidden_size
        start = torch.from_numpy(generator("critic").standard_normal((1, width)) * 0.1)
        self.value_head = nn.Linear(width, 1, bias=False).to(weight.device, weight.dtype)
        with torch.no_grad():
            self.value_head.weight.copy_(start)
        self.module = causal.base_model

    @property
    def causal(self) -> Any:
        return self.module

    def forward(self, row: RowTensors, names: Sequence[str]) -> dict[str, Tensor]:
        return {"value": self.value_head(self.hidden(row)).squeeze(-1)}


class TwoAgents(Algorithm):
    """Actor-critic for two agents that speak in turn; each policy and each critic is a network of its own."""

    networks: ClassVar = {"first": Network, "second": Network, "critic_first": ValueNetwork, "critic_second": ValueNetwork}
    agents: ClassVar = {"first": "first", "second": "second"}
    agent_loop = staticmethod(two_agents)

    def __init__(self, config: Any, loss_config: Any, loss: Any) -> None:
        self.config = config
        columns = {name: frozenset({"value"} if name.startswith("critic") else {"logp"}) for name in self.networks}
        self.needs = Needs(before=frozenset({"old", "value"}), columns=columns)

    def critic(self, policy: str) -> str:
        return f"critic_{policy}"

    def models_of(self, rollout: Rollout) -> Sequence[str]:
        return (rollout.policy, self.critic(rollout.agent))

    def samples_of_rollout(self, rollout: Rollout, number: int) -> list[Sample]:
        made = []
        for sample in samples_of(rollout, number, rollout.policy):
            reads = replace(sample, model=self.critic(rollout.agent), target_L=np.full(sample.terms, VALUE), sampler_logp_L=np.zeros(sample.terms, np.float32))
            made += [sample, reads]
        return made

    def advantages(self, batch: GenerationBatch, samples: Sequence[Sample], terms: Terms) -> None:
        rewards = np.array([rollout.reward for rollout in batch.rollouts])
        terms.extra["returns"] = spread(terms, rewards)
        advantage = np.zeros(terms.count)
        for number in range(0, len(samples), 2):
            mine = slice(terms.offsets_S[number], terms.offsets_S[number + 1])
            reads = slice(terms.offsets_S[number + 1], terms.offsets_S[number + 2])
            value = 0.0 if self.config.ablate else terms.columns["value"][reads]
            advantage[mine] = rewards[samples[number].rollout] - value
        terms.advantage_L = advantage

    def reduction(self, model: str) -> str:
        return "tokens"

    def objective(self, model: str) -> Objective:
        return _value_objective if model.startswith("critic") else _clip_objective


class TwoAgentsShared(TwoAgents):
    """Both agents are played by one policy: it makes one step from the sum; the critics stay apart."""

    networks: ClassVar = {"policy": Network, "critic_first": ValueNetwork, "critic_second": ValueNetwork}
    agents: ClassVar = {"first": "policy", "second": "policy"}


def _clip_objective(inputs: LossInputs) -> ObjectiveResult:
    ratio_L = torch.exp(inputs.logp_L - inputs.old_logp_L)
    return _sum(inputs, -torch.minimum(ratio_L * inputs.advantage_L, ratio_L.clamp(0.8, 1.2) * inputs.advantage_L), {})


def _value_objective(inputs: LossInputs) -> ObjectiveResult:
    error_L = inputs.columns["value"] - inputs.extra["returns"]
    mean = Stat(MEAN, float(inputs.where_active(error_L**2).sum().detach()), float(inputs.active_L.sum()))
    return _sum(inputs, 0.5 * error_L**2, {"value_error": mean})
