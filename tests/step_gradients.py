"""Gradients of whole steps: samples, rows, scoring, advantages and backward of a real tiny model."""

from __future__ import annotations

from pathlib import Path

import torch
from models_for_tests import tiny_model

from rlexp.algorithms.policy_gradient import PolicyGradient
from rlexp.chat.rendering import Renderer
from rlexp.config.strategy import StrategyConfig
from rlexp.data.tasks import TaskData
from rlexp.distributed.shards import assign, shape_of, whole
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.distributed.zero import is_partitioned
from rlexp.models.companion import Companion
from rlexp.models.network import Network
from rlexp.records.rollout import GenerationBatch
from rlexp.training.networks import Trainable
from rlexp.training.plan import Budget
from rlexp.training.score import score
from rlexp.training.step import Local, StepRunner
from rlexp.training.work import begin

BUDGETS = (12, 25, 60)
"""tokens of a row, for tests that split a step"""


def noise(parameter: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    """The same in every process."""
    return size * torch.randn(shape_of(parameter), generator=torch.Generator().manual_seed(seed), dtype=parameter.dtype)


def companion(network: Network) -> Companion:
    """A copy whose weights are a little different."""
    made = Companion(network)
    with torch.no_grad():
        for index, parameter in enumerate(made.network.parameters()):
            parameter.add_(noise(parameter, 0.01, index))
    return made


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Whole."""
    if is_partitioned(parameter):
        from deepspeed.utils import safe_get_full_grad

        return safe_get_full_grad(parameter)
    return torch.zeros(parameter.shape) if parameter.grad is None else whole(parameter.grad)


def gradients(
    algo: PolicyGradient,
    batch: GenerationBatch,
    *,
    tokens: int = 10_000,
    steps: int = 1,
    strategy: SingleStrategy | None = None,
    moved: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """Gradient and metrics of each step of a batch, weights untouched between the steps.

    moved: noise on the weights after old and reference were scored, so that ratios differ from 1.
    """
    strategy = strategy or SingleStrategy(StrategyConfig())
    loaded = tiny_model(spread=2.0, dtype=dtype)
    network = Network(loaded, chunk=7)
    network.own_columns = dict(algo.own_columns)
    algo.prepare(Renderer(loaded.tokenizer), loaded.context, TaskData([{"prompt": "p"}], [], ""))
    companions = {name: companion(network) for name in algo.needs.companions}
    wrapped = strategy.wrap(network)
    for made_of in companions.values():
        strategy.place(made_of.network)
    parameters = list(network.parameters())
    optimizer = strategy.optimizer(wrapped, parameters, lambda given: torch.optim.SGD(given, lr=1.0))
    trainable = Trainable(network.train(), wrapped, optimizer, parameters, None, companions)
    runner = StepRunner({"policy": trainable}, algo, strategy, seed=0, dropout=False, dumps=Path("unused"))
    collectives = strategy.collectives
    work = begin(batch, algo.samples(batch), algo, Budget(steps, tokens, 16, collectives.rank, collectives.world))
    score(
        work.plan.steps,
        work.terms,
        {"policy": trainable},
        algo.needs.before | ({"old"} if moved else set()),
        collectives,
        moved=False,
        every_row=strategy.sharded,
    )
    algo.advantages(batch, work.samples, work.terms)
    algo.masks(batch, work.terms)
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            assign(parameter, whole(parameter) + noise(parameter, moved, 100 + index))
    made, metrics = [], []
    for step in work.plan.steps:
        local = runner.backward(step, work.terms, work.plan, 0, first_pass=True)
        totals = runner.reduce(Local(local.stats), False)
        made.append(torch.cat([gradient_of(parameter).double().flatten() for parameter in parameters]))
        metrics.append({key: stat.result() for key, stat in totals.stats.items()})
        trainable.optimizer.zero_grad()
    return made, metrics
