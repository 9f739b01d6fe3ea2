"""A reward model in parts: the scores, the runs and the errors of one process, with ranks that have different numbers of texts to score."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cluster.test_fsdp2_runs import EXACT, difference
from cluster.world import in_worlds, run_of
from models_for_tests import classifier_folder
from programs import Programs
from run_folders import metrics

from rlexp.config.reward import ModelRewardConfig
from rlexp.config.strategy import DeepSpeedZero3StrategyConfig, FSDP2StrategyConfig
from rlexp.distributed.shards import own_part
from rlexp.rewards.model import ModelScore

TEXTS = ["2", "a longer answer", "10", "", "3+4", "12"]
SHARDED = ("fsdp2", "deepspeed_zero3")


def strategy_of(name: str):
    """On a rank."""
    from rlexp.distributed.strategy.deepspeed_zero3 import DeepSpeedZero3Strategy
    from rlexp.distributed.strategy.fsdp2 import FSDP2Strategy

    return FSDP2Strategy(FSDP2StrategyConfig(timeout=60)) if name == "fsdp2" else DeepSpeedZero3Strategy(DeepSpeedZero3StrategyConfig(timeout=60))


def on_ranks(strategy: str, model: str, path: str) -> None:
    """Each rank writes its scores of its share, and how many numbers of the model it holds. The last rank has no text."""
    from rlexp.build import spread_rewards
    from rlexp.config.reward import RewardConfig
    from rlexp.rewards.runner import RewardRunner
    from rlexp.rewards.terms import Term

    torch.set_num_threads(1)
    made = strategy_of(strategy)
    with made.loading():
        rewards = RewardRunner(RewardConfig(), terms=[Term("model", ModelScore(ModelRewardConfig(path=model, batch_size=1)))])
    spread_rewards(rewards, made)
    (reward,) = rewards.models
    rank, world = made.collectives.rank, made.collectives.world
    mine = [] if rank == world - 1 else TEXTS[: 4 - 3 * rank]
    held = sum(own_part(parameter).numel() if not hasattr(parameter, "ds_tensor") else parameter.ds_tensor.numel() for parameter in reward.module.parameters())
    with made.sampling([], [reward.module]):
        scores = reward(["1+1="] * len(mine), mine)
    torch.save({"scores": scores, "held": held}, f"{path}_{rank}.pt")
    made.collectives.barrier()
    made.close()


@pytest.mark.rows("GRPO-113")
@pytest.mark.parametrize("strategy", SHARDED)
def test_each_rank_scores_what_it_has(strategy: str, programs: Programs, tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "classifier")
    in_worlds(
        programs,
        tmp_path / "jobs",
        {"world": 3, "call": "cluster.test_reward_models:on_ranks", "arguments": [strategy, str(folder), str(tmp_path / "found")]},
    )
    alone = ModelScore(ModelRewardConfig(path=str(folder)))
    whole = sum(parameter.numel() for parameter in alone.module.parameters())
    for rank, count in enumerate((4, 1, 0)):
        found = torch.load(tmp_path / f"found_{rank}.pt")
        assert found["scores"] == pytest.approx(alone(["1+1="] * count, TEXTS[:count]), abs=1e-6)
        assert found["held"] < 0.4 * whole


RUN = [*EXACT, "data.eval_size=1", "evaluation.steps=2", "reward=[digits,model]", "reward.terms.model.batch_size=1", "loss=dapo"]


@pytest.mark.rows("GRPO-113", "GRPO-114")
def test_runs_are_those_of_one_process(programs: Programs, tmp_path: Path) -> None:
    """Also layer by layer, scored while others sample, and with ZeRO-3, which computes in float32. One held-out task: a rank without any text."""
    options = [*RUN, f"reward.terms.model.path={classifier_folder(tmp_path / 'classifier')}"]
    kinds = {
        "one": (1, "single", []),
        "one in float32": (1, "single", ["model.dtype=float32"]),
        "two": (2, "fsdp2", []),
        "three": (3, "fsdp2", []),
        "in step": (2, "fsdp2", ["strategy.gather_for_generation=false"]),
        "overlap": (2, "fsdp2", ["reward.overlap=true"]),
        "zero": (2, "deepspeed_zero3", ["model.dtype=float32"]),
        "zero in step": (2, "deepspeed_zero3", ["model.dtype=float32", "strategy.gather_for_generation=false"]),
    }
    jobs = [run_of(tmp_path / name, world, [*options, *more], strategy) for name, (world, strategy, more) in kinds.items()]
    in_worlds(programs, tmp_path / "jobs", *jobs)
    assert len({line["rewards/model/mean"] for line in metrics(tmp_path / "one")}) > 2
    for name in kinds:
        one, allowed = ("one in float32", 1e-5) if "model.dtype=float32" in kinds[name][2] else ("one", 1e-9)
        assert difference(tmp_path / one, tmp_path / name) < allowed, name
        for line, other in zip(metrics(tmp_path / one), metrics(tmp_path / name), strict=True):
            assert other["rewards/model/mean"] == pytest.approx(line["rewards/model/mean"], abs=1e-6), name


def test_a_reward_that_fails_on_one_rank_ends_all(programs: Programs, tmp_path: Path) -> None:
    """Before the model is asked, while the others compute it already."""
    options = [*RUN, f"reward.terms.model.path={classifier_folder(tmp_path / 'classifier')}", f"reward.terms.custom.path={__file__}:fails_on_rank_1"]
    with pytest.raises(AssertionError, match="reward 'custom' raised ValueError: not today"):
        in_worlds(programs, tmp_path / "jobs", run_of(tmp_path / "run", 2, [*options, "reward=[custom,digits,model]"], "fsdp2"))


def fails_on_rank_1(completions: list) -> list[float]:
    """A reward of a user."""
    import os

    if os.environ["RANK"] == "1":
        raise ValueError("not today")
    return [0.0] * len(completions)
