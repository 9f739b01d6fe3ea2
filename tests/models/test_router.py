"""The load-balancing loss of mixture-of-experts models: transformers' own number on samples that are forwarded alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from batches import random_batch
from loss_batches import loss_config
from models_for_tests import tiny_model
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from rlexp.algorithms.grpo import GRPO
from rlexp.batching.packer import pack
from rlexp.batching.shares import samples_through
from rlexp.batching.terms import flatten
from rlexp.config.algorithm import GRPOConfig
from rlexp.config.errors import UserError
from rlexp.config.strategy import StrategyConfig
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.losses.dapo import dapo
from rlexp.models.network import Network, row_tensors
from rlexp.models.router import experts_per_token, router_coefficient
from rlexp.records.sample import Sample
from rlexp.training.networks import Trainable
from rlexp.training.plan import Budget
from rlexp.training.step import StepRunner
from rlexp.training.work import begin

MIXTURES = ["mixtral", "qwen3_moe", "olmoe"]


def sample(ids: list[int], trained: int) -> Sample:
    array = np.array(ids)
    position = np.arange(len(ids) - trained - 1, len(ids) - 1)
    return Sample("policy", 0, array, position, array[position + 1], np.zeros(trained, np.float32))


BRANCHING = [sample([5, 6, 7, 8, 9], 2), sample([5, 6, 7, 8, 10, 11], 3), sample([5, 6, 7, 8, 9], 2), sample([40, 41, 42], 2), sample([5, 6, 7], 1)]
SHARED = [4, 4, 3, 3, 1, 1, 1]
"""samples through 5 6 7 8 | 10 in depth-first order, then 40 41: the last id of a sample is not forwarded"""


def of_padded_batch(module: torch.nn.Module, samples: list[Sample]) -> torch.Tensor:
    """transformers' number on the samples side by side, right-padded, with its attention mask."""
    longest = max(len(item.ids) for item in samples) - 1
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    mask = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, item in enumerate(samples):
        ids[row, : len(item.ids) - 1], mask[row, : len(item.ids) - 1] = torch.from_numpy(item.ids[:-1]), 1
    output = module.model(input_ids=ids, attention_mask=mask, output_router_logits=True)
    return load_balancing_loss_func(output.router_logits, 4, experts_per_token(module), mask)


def gradient(module: torch.nn.Module) -> torch.Tensor:
    found = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in module.parameters()]
    module.zero_grad()
    return torch.cat([each.flatten().double() for each in found])


def test_shared_positions_count_for_each_sample() -> None:
    terms = flatten(BRANCHING)
    row = pack(BRANCHING, terms, range(5), budget=100)[0][0].row
    assert row.ids_T.tolist() == [5, 6, 7, 8, 10, 40, 41]
    # [5 6 7] ends at 6; two samples end at 8, one at 10
    assert samples_through(row, terms).tolist() == SHARED
    assert sum(SHARED) == sum(len(item.ids) - 1 for item in BRANCHING)


@pytest.mark.rows("GRPO-047", "RLOO-022", "GRPO-232")
@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_packed_row_gives_the_number_and_gradient_of_the_padded_batch(kind: str, checkpointing: bool) -> None:
    loaded = tiny_model(kind=kind, dtype=torch.float32, spread=4.0)
    network = Network(loaded)
    network.check()
    theirs = of_padded_batch(loaded.module, BRANCHING)
    theirs.backward()
    expected = gradient(loaded.module)
    if checkpointing:
        loaded.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        loaded.module.train()
    terms = flatten(BRANCHING)
    row = pack(BRANCHING, terms, range(5), budget=100)[0][0].row
    mine = network(row_tensors(row, terms, network.device, shares=True), ["entropy", "logp", "router"])["router"]
    mine.backward()
    number = float(mine.detach())
    assert number == pytest.approx(float(theirs.detach()), rel=1e-6) and abs(number - experts_per_token(loaded.module)) > 1e-3
    assert torch.allclose(gradient(loaded.module), expected, atol=1e-6, rtol=1e-4) and float(expected.norm()) > 1e-3


def step_of(coef: float, *, tokens: int = 10_000, rank: int = 0, world: int = 1) -> tuple[torch.Tensor, dict[str, float], list[Sample], torch.nn.Module]:
    """Gradient, metrics and samples of one step of a small mixture."""
    loaded = tiny_model(kind="mixtral", dtype=torch.float32, spread=4.0)
    algo = GRPO(GRPOConfig(), loss_config("dapo"), dapo)
    if coef:
        algo.use_router(coef)
    network, strategy = Network(loaded), SingleStrategy(StrategyConfig())
    parameters = list(network.parameters())
    trainable = Trainable(network, network, torch.optim.SGD(parameters, lr=1.0), parameters, None)
    batch = random_batch(3)
    for rollout in batch.groups[0].rollouts:
        rollout.reward = 1.0  # no signal: forwarded for its router only
    work = begin(batch, algo.samples(batch), algo, Budget(1, tokens, 16, rank, world))
    algo.advantages(batch, work.samples, work.terms)
    local = StepRunner({"policy": trainable}, algo, strategy, seed=0, dropout=False, dumps=Path("unused")).backward(
        work.plan.steps[0], work.terms, work.plan, 0, True
    )
    return gradient(loaded.module), {name: stat.result() for name, stat in local.stats.items()}, work.samples, loaded.module


@pytest.mark.rows("GRPO-047", "RLOO-022", "GRPO-232")
def test_the_step_adds_it_once_and_logs_it_before_its_weight() -> None:
    without, plain, fewer, _ = step_of(0.0)
    found, stats, samples, module = step_of(0.5)
    assert len(samples) == 12 and len(fewer) == 8, "groups without signal have a load too"
    aux = of_padded_batch(module, samples)
    aux.backward()
    aux = aux.detach()
    assert torch.allclose(found, without + 0.5 * gradient(module), atol=1e-5, rtol=1e-3)
    assert stats["aux_loss"] == pytest.approx(float(aux), rel=1e-5) and "aux_loss" not in plain
    assert stats["loss"] == pytest.approx(plain["loss"] + 0.5 * float(aux), abs=1e-5)


@pytest.mark.parametrize("tokens", [14, 18, 26])
def test_rows_are_weighted_by_their_positions(tokens: int) -> None:
    _, stats, samples, module = step_of(0.5, tokens=tokens)
    terms = flatten(samples)
    rows = pack(samples, terms, range(12), budget=tokens)[0]
    total = sum(len(item.ids) - 1 for item in samples)
    expected = 0.0
    for micro_batch in rows:
        mine = [samples[number] for number in sorted(set(terms.sample_L[micro_batch.row.term_L].tolist()))]
        expected += sum(len(item.ids) - 1 for item in mine) / total * float(of_padded_batch(module, mine).detach())
    assert len(rows) > 1 and stats["aux_loss"] == pytest.approx(expected, rel=1e-5)


def test_processes_add_up_and_a_filler_row_adds_nothing() -> None:
    many, _, samples, _ = step_of(0.5, tokens=14)
    ranks = [step_of(0.5, tokens=14, rank=rank, world=2)[0] for rank in range(2)]
    assert torch.allclose(ranks[0] + ranks[1], many, atol=1e-5, rtol=1e-3), "six rows either way"
    alone = [step_of(0.5, rank=rank, world=13) for rank in range(13)]
    fillers = [part[0].filler for part in pack(samples, flatten(samples), range(12), budget=10_000, world=13)]
    assert any(fillers) and [float(found.norm()) == 0 for found, *_ in alone] == fillers == [stats == {} for _, stats, *_ in alone]


@pytest.mark.rows("GRPO-047", "GRPO-266", "RLOO-084")
def test_which_coefficient_applies() -> None:
    mixture = tiny_model(kind="mixtral", dtype=torch.float32).module
    assert router_coefficient(mixture, None) == 0.001, "of its config"
    assert router_coefficient(mixture, 0.0) == 0.0 and router_coefficient(mixture, 0.3) == 0.3
    dense = tiny_model(dtype=torch.float32).module
    assert router_coefficient(dense, None) == 0.0
    for value in (0.0, 0.01):
        with pytest.raises(UserError, match=rf"^loss.router_aux_loss_coef={value:g} is for mixture-of-experts models, and Qwen3ForCausalLM has no router"):
            router_coefficient(dense, value)
