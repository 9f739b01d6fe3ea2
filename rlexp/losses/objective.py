"""The objective of a policy: its loss, the KL term, the mask and the scale of each term, added up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rlexp.config.algorithm import LossConfig
from rlexp.config.errors import UserError
from rlexp.losses.correction import Correction, correction_stats, correction_weights
from rlexp.losses.entropy import EntropyController
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.kl import kl_term
from rlexp.losses.off_policy import near_policy
from rlexp.records.stats import MEAN, SUM, Stat


@dataclass
class ObjectiveResult:
    """loss: scalar with gradient, this micro-batch's part of the step's loss. stats: its part of the step's metrics."""

    loss: Tensor
    stats: dict[str, Stat] = field(default_factory=dict)


class PolicyObjective:
    """sum over active terms of scale * (policy term * factors + beta * KL), less the entropy bonus: a pure sum, so micro-batches and ranks add up.

    loss: a function (LossInputs, config) -> PolicyTerm. config: its dataclass. beta: KL coefficient; 0 needs no reference.
    kl_estimator: of rlexp.losses.kl. use_bias_correction_kl: multiply the KL term by the loss's importance ratio. correction: set for a sampler
    that differs from the trainer. router_coef: weight of the load-balancing loss of a mixture-of-experts model.
    """

    def __init__(
        self,
        loss: Callable[[LossInputs, Any], PolicyTerm],
        config: LossConfig,
        *,
        beta: float = 0.0,
        kl_estimator: str = "k3",
        use_bias_correction_kl: bool = True,
    ) -> None:
        self.loss = loss
        self.config = config
        self.beta, self.kl_estimator = beta, kl_estimator
        self.use_bias_correction_kl = use_bias_correction_kl
        self.correction: Correction | None = None
        self.entropy = EntropyController(config)
        self.router_coef = 0.0

    @property
    def columns(self) -> frozenset[str]:
        """Of the training forward; entropy is for its metric and the bonus."""
        return frozenset({"logp", "entropy", *(("router",) if self.router_coef else ())})

    @property
    def before(self) -> frozenset[str]:
        """Columns to be scored before the first step."""
        wanted = {"reference": bool(self.beta), "old": self.correction is not None or bool(self.config.choice), "entropy": self.config.top_entropy_quantile < 1}
        return frozenset(name for name, needed in wanted.items() if needed)

    @property
    def uses_entropy(self) -> bool:
        """Whether entropies enter the loss; inputs.extra then holds entropy_keep and entropy_scale."""
        return self.entropy.active or self.config.top_entropy_quantile < 1

    @property
    def needs_every_term(self) -> bool:
        """Whether the terms of groups without signal have a part in it: in an entropy, a threshold, a mean over the step or the load of experts."""
        return self.uses_entropy or bool(self.config.choice) or bool(self.router_coef)

    @property
    def per_rollout(self) -> bool:
        """Whether anything is a number per rollout, so that all samples of one must be in one row."""
        level = self.config.level or getattr(self.config, "importance_sampling_level", "token")
        whole = self.correction is not None and self.correction.per_rollout
        return level != "token" or whole or self.config.off_policy_mask_threshold is not None

    def __call__(self, inputs: LossInputs) -> ObjectiveResult:
        """Loss and metrics of one row.

        The order matters and is fixed: the loss's policy term; factors on it (off-policy mask, entropy mask, correction weights); the
        additive KL, which those factors do not touch; mask and scale; less the entropy bonus, which has a scale of its own; the load of
        experts.
        """
        weight_L, stats = self._correct(inputs)
        if self.config.takes_correction:
            inputs, weight_L = replace(inputs, weight_L=weight_L), None
        term = self.loss(inputs, self.config)
        x_L = term.value_L
        if self.config.off_policy_mask_threshold is not None:
            x_L = x_L * near_policy(inputs, self.config.off_policy_mask_threshold)
        if self.config.top_entropy_quantile < 1:
            x_L = x_L * inputs.extra["entropy_keep"]
        if weight_L is not None:
            x_L = x_L * weight_L
        kl_L = self._kl(inputs, term) if self.beta else None
        if kl_L is not None:
            x_L = x_L + self.beta * kl_L
        scale_L = inputs.where_active(inputs.scale_L)
        loss = (scale_L * inputs.where_active(x_L)).sum()
        if self.entropy.active:
            stats.update(self._bonus_stats(inputs, loss))
        if self.entropy.applied:
            loss = loss - self.entropy.applied * (inputs.extra["entropy_scale"] * self._kept(inputs)).sum()
        if self.router_coef:
            loss = loss + self.router_coef * self.router_part(inputs, stats)
        return ObjectiveResult(loss, {**self._stats(inputs, loss, kl_L), **term.stats, **stats})

    def _correct(self, inputs: LossInputs) -> tuple[Tensor | None, dict[str, Stat]]:
        """The correction's weights, if there is one, and their metrics."""
        if self.correction is None:
            return None, {}
        weight_L = correction_weights(inputs, self.correction)
        return weight_L, correction_stats(inputs, weight_L, self.correction)

    @staticmethod
    def router_part(inputs: LossInputs, stats: dict[str, Stat]) -> Tensor:
        """The row's part of the load-balancing loss, rows weighted by their positions. Adds its metric to stats."""
        assert inputs.router is not None
        part = inputs.router_share * inputs.router
        stats["aux_loss"] = Stat(MEAN, float(part.detach()), inputs.router_share)
        return part

    def _kept(self, inputs: LossInputs) -> Tensor:
        """The entropy of the terms that the entropy mask keeps, 0 at others, [L]."""
        keep_L = inputs.active_L & (inputs.extra["entropy_keep"] > 0)
        return torch.where(keep_L, inputs.columns["entropy"], 0.0)

    @torch.no_grad()
    def _bonus_stats(self, inputs: LossInputs, loss: Tensor) -> dict[str, Stat]:
        """The loss without the bonus, the coefficient, and the entropy that it is compared by."""
        kept = (inputs.active_L & (inputs.extra["entropy_keep"] > 0)).sum()
        policy_loss, total, count = torch.stack([loss, self._kept(inputs).sum(), kept.to(loss.dtype)]).tolist()
        return {"policy_loss": Stat(SUM, policy_loss), "entropy_coef": Stat(MEAN, self.entropy.coef), "entropy_kept": Stat(MEAN, total, count)}

    def _kl(self, inputs: LossInputs, term: PolicyTerm) -> Tensor:
        if not self.use_bias_correction_kl:
            return kl_term(inputs, self.kl_estimator)
        if term.ratio_L is None:
            raise UserError(f"loss={self.config.name} has no importance ratio for the KL term: set algorithm.use_bias_correction_kl=false or algorithm.beta=0")
        return kl_term(inputs, self.kl_estimator, term.ratio_L)

    @torch.no_grad()
    def _stats(self, inputs: LossInputs, loss: Tensor, kl_L: Tensor | None) -> dict[str, Stat]:
        """Sums over active terms; one transfer from the device for all numbers."""
        means = {"entropy": inputs.columns["entropy"]}
        if kl_L is not None:
            means["kl"] = kl_L
        sums = [inputs.where_active(x_L).sum() for x_L in means.values()]
        loss_sum, active, *values = torch.stack([loss, inputs.active_L.sum().to(loss.dtype), *(x.to(loss.dtype) for x in sums)]).tolist()
        return {"loss": Stat(SUM, loss_sum), **{name: Stat(MEAN, value, active) for name, value in zip(means, values, strict=True)}}
