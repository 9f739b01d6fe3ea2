"""The gradient of a step does not depend on how it was split: rows, budgets, shared prefixes, processes, number of passes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import step_gradients
import torch
from batches import batch_of, random_batch, rollout
from cluster.world import in_worlds
from loss_batches import LOSS_NAMES, loss_config, own_options
from models_for_tests import tiny_model
from programs import Programs
from step_gradients import gradients

from rlexp.algorithms.grpo import GRPO
from rlexp.batching import packer
from rlexp.config.algorithm import GRPOConfig
from rlexp.config.strategy import DDPStrategyConfig, StrategyConfig
from rlexp.distributed.strategy.ddp import DDPStrategy
from rlexp.distributed.strategy.single import SingleStrategy
from rlexp.models.network import Network
from rlexp.registry import LOSSES
from rlexp.training.networks import Trainable
from rlexp.training.plan import Budget
from rlexp.training.score import score
from rlexp.training.step import StepRunner
from rlexp.training.work import begin

SPLIT_FREE = [name for name in LOSS_NAMES if name != "bnpo"]


def algorithm(name: str, beta: float = 0.0, **overrides: object) -> GRPO:
    config = loss_config(name, **own_options(name, **overrides))
    return GRPO(GRPOConfig(beta=beta), config, LOSSES.load(name))


CASES = [
    pytest.param(name, beta, overrides, id=f"{name}-beta{beta}-{'-'.join(map(str, overrides.values())) or 'default'}")
    for name in SPLIT_FREE
    for beta, overrides in ((0.0, {}), (0.1, {}), (0.0, {"importance_sampling_level": "sequence"}), (0.1, {"mask_truncated_completions": True, "delta": 1.5}))
]


@pytest.mark.rows("GRPO-010", "GRPO-011", "GRPO-028", "GRPO-029", "GRPO-030")
@pytest.mark.parametrize(("name", "beta", "overrides"), CASES)
def test_splits_give_one_gradient(name: str, beta: float, overrides: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    algo = algorithm(name, beta, **overrides)
    (whole,), (metrics,) = gradients(algo, random_batch(1), moved=0.02)
    assert whole.abs().max() > 1e-4
    for tokens in step_gradients.BUDGETS:
        (split,), (split_metrics,) = gradients(algo, random_batch(1), tokens=tokens, moved=0.02)
        assert torch.allclose(split, whole, atol=1e-9, rtol=0)
        assert {key: value for key, value in split_metrics.items() if "_m" not in key[-5:]} == pytest.approx(
            {key: value for key, value in metrics.items() if "_m" not in key[-5:]}, abs=1e-9
        )
    monkeypatch.setattr(packer, "_cut", lambda units, *rest: [[unit] for unit in units])
    (alone,), _ = gradients(algo, random_batch(1), moved=0.02)
    assert torch.allclose(alone, whole, atol=1e-9, rtol=0), "one sample per row, so no prefix is shared"


@pytest.mark.rows("GRPO-031")
def test_bnpo_depends_on_the_split_as_documented() -> None:
    (whole,), _ = gradients(algorithm("bnpo"), random_batch(1))
    (dapo,), _ = gradients(algorithm("dapo"), random_batch(1))
    (split,), _ = gradients(algorithm("bnpo"), random_batch(1), tokens=25)
    assert torch.allclose(whole, dapo, atol=1e-9), "in one micro-batch bnpo is dapo"
    assert (split - whole).abs().max() > 1e-6


def test_shared_sampled_tokens_with_opposite_advantages_keep_both_terms() -> None:
    """Two rollouts share their first two sampled tokens; their terms differ though the positions are the same."""
    batch = batch_of([[rollout([5, 6], [7, 8, 9], 1.0, index=0), rollout([5, 6], [7, 8, 10, 11], 0.0, index=1)]])
    algo = algorithm("grpo")
    work = begin(batch, algo.samples(batch), algo, Budget(1, 1000, 16))
    row = work.plan.steps[0].micro_batches["policy"][0].row
    assert row.tokens == 5 and len(row.position_L) == 7, "5, 6, 7, 8 and 10 are forwarded once; seven terms"
    (packed,), _ = gradients(algo, batch)
    (apart,), _ = gradients(algo, batch, tokens=5)
    assert torch.allclose(packed, apart, atol=1e-9) and packed.abs().max() > 1e-4


def on_ranks(name: str, beta: float, overrides: dict[str, object], path: str) -> None:
    """Rank 0 writes what both come to, in one row each and in several."""
    torch.set_num_threads(1)
    strategy = DDPStrategy(DDPStrategyConfig(timeout=60))
    found = [gradients(algorithm(name, beta, **overrides), random_batch(1), tokens=tokens, strategy=strategy, moved=0.02) for tokens in (10_000, 25)]
    if strategy.collectives.rank == 0:
        torch.save(found, path)
    strategy.collectives.barrier()
    strategy.close()


@pytest.mark.parametrize(
    ("name", "beta", "overrides"), [("dapo", 0.1, {}), ("grpo", 0.0, {}), ("cispo", 0.1, {"top_entropy_quantile": 0.4, "entropy_coef": 0.2})]
)
def test_two_processes_give_the_gradient_of_one(name: str, beta: float, overrides: dict[str, object], programs: Programs, tmp_path: Path) -> None:
    (whole,), (metrics,) = gradients(algorithm(name, beta, **overrides), random_batch(1), moved=0.02)
    path = tmp_path / "found.pt"
    in_worlds(programs, tmp_path, {"world": 2, "call": "training.test_invariance:on_ranks", "arguments": [name, beta, overrides, str(path)]})
    for made, found in torch.load(path, weights_only=False):
        assert torch.allclose(made[0], whole, atol=1e-9, rtol=0)
        assert found[0]["loss"] == pytest.approx(metrics["loss"], abs=1e-9) and found[0]["entropy"] == pytest.approx(metrics["entropy"], abs=1e-9)


@pytest.mark.rows("GRPO-002", "GRPO-003")
def test_on_policy_ratio_is_exactly_one_with_temperature() -> None:
    algo = algorithm("dapo")
    batch = random_batch(2)
    loaded = tiny_model(dtype=torch.float32)
    network = Network(loaded, temperature=0.6)
    strategy = SingleStrategy(StrategyConfig())
    parameters = list(network.parameters())
    trainable = Trainable(network.train(), network, torch.optim.SGD(parameters, lr=1.0), parameters, None)
    runner = StepRunner({"policy": trainable}, algo, strategy, seed=0, dropout=False, dumps=Path("unused"))
    seen: list[torch.Tensor] = []
    loss = algo._objective.loss
    algo._objective.loss = lambda inputs, config: (seen.append(torch.exp(inputs.logp_L - inputs.old_logp_L)), loss(inputs, config))[1]
    for before in (set(), {"old"}):
        work = begin(batch, algo.samples(batch), algo, Budget(1, 40, 16))
        score(work.plan.steps, work.terms, {"policy": trainable}, before, strategy.collectives, moved=False)
        algo.advantages(batch, work.samples, work.terms)
        runner.backward(work.plan.steps[0], work.terms, work.plan, 0, first_pass=True)
    assert len(seen) >= 4 and all(torch.equal(ratio, torch.ones_like(ratio)) for ratio in seen), "scored in the same rows, old is bit for bit logp"


@pytest.mark.rows("GRPO-046")
def test_masked_rollouts_leave_the_count_and_idle_groups_stay() -> None:
    flat = [rollout([5], [20, 21], 1.0, 1, 0), rollout([5], [22, 23, 24], 1.0, 1, 1)]
    cut = [rollout([5], [30, 31, 32], 1.0, 0, 0, finish="length"), rollout([5], [33], 0.0, 0, 1)]
    batch = batch_of([cut, flat])
    algo = algorithm("dapo", mask_truncated_completions=True)
    samples = algo.samples(batch)
    work = begin(batch, samples, algo, Budget(1, 1000, 16))
    assert [sample.rollout for sample in samples] == [1], "the truncated rollout has no terms, the flat group is skipped"
    assert work.plan.scale_L.tolist() == [1 / 6], "1 + 2 + 3 tokens: idle rollouts count, the truncated one does not"
    keep = algorithm("dapo")
    work = begin(batch, keep.samples(batch), keep, Budget(1, 1000, 16))
    assert np.allclose(work.plan.scale_L, 1 / 9)
    with_kl = algorithm("dapo", beta=0.1)
    assert len(with_kl.samples(batch)) == 4, "a KL term needs the flat group too"


def test_steps_are_cut_by_rollouts_in_order() -> None:
    algo = algorithm("grpo")
    batch = random_batch(3, groups=4, size=4)
    work = begin(batch, algo.samples(batch), algo, Budget(2, 1000, 16))
    for number, step in enumerate(work.plan.steps):
        rollouts = {int(r) for micro in step.micro_batches["policy"] for r in work.terms.rollout_L[micro.row.term_L]}
        assert rollouts <= set(range(8 * number, 8 * number + 8))
    assert dataclasses.asdict(GRPOConfig())["num_iterations"] == 1
