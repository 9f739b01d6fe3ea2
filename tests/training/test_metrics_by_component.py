"""The lines that each algorithm, loss and option logs hold exactly the names that docs/metrics.md promises for it."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docs.test_names import documented_metrics
from runs_here import Logged, config_of, model_folder, trained

from rlexp.components import register_all
from rlexp.config.correction import CorrectionConfig
from rlexp.registry import ALGORITHMS, LOSSES
from rlexp.training.trainer import Trainer

register_all()
CLIP = {f"clip_ratio/{part}" for part in ("low_mean", "high_mean", "region_mean", "low_min", "high_max")}
OF_LOSS: dict[str, set[str]] = {
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "rloo", "gmpo", "dppo"), CLIP),
    "cispo": {"cispo_clip_ratio"},
    "vespo": {"vespo/phi_seq_mean"},
    "sapo": set(),
    "clip_cov": set(),
    "kl_cov": set(),
}
OF_ALGORITHM: dict[str, set[str]] = {
    **dict.fromkeys(("grpo", "reinforce", "reinforce_pp", "opo", "maxrl", "grpo_passk"), CLIP),
    "rloo": CLIP | {"kl"},
    "remax": CLIP | {"reward_greedy"},
    "sdpo": {"sdpo/distillation_loss", *(name for name in documented_metrics() if name.startswith("self_distillation/"))}
    - {"self_distillation/policy_loss", "self_distillation/server_logprob_abs_diff"},
}
FIRST_PASS = {"sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"}
FRESH = {"perf/generation_s", "perf/reward_s", "perf/pack_s", "perf/score_s"}
"""on the first line of a generation batch"""
BONUS = {"policy_loss", "entropy_coef", "entropy_kept"}
WEIGHTS = {f"sampling/importance_sampling_ratio/{part}" for part in ("min", "mean", "max")}
OPTIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({"algorithm__beta": 0.1}, {"kl"}),
    ({"algorithm__beta": 0.1, "algorithm__kl_target": 0.01}, {"kl", "kl_coef"}),
    ({"algorithm__beta": 0.1, "algorithm__kl_in": "reward"}, {"kl"}),
    ({"loss__entropy_coef": 0.01}, BONUS),
    ({"loss__use_adaptive_entropy": True}, BONUS),
    ({"loss__top_entropy_quantile": 0.5}, set()),
    ({"loss__off_policy_mask_threshold": 0.5}, set()),
    ({"loss__mask_truncated_completions": True, "rollout__max_completion_length": 60}, set()),
    ({"correction": CorrectionConfig("token_mask")}, WEIGHTS),
    ({"correction": CorrectionConfig("sequence_truncate")}, WEIGHTS),
    ({"rollout__refill": True}, {"batch/refills", "batch/dropped_groups", "batch/flat_groups"}),
    ({"reward__on_error": "none"}, {"rewards/<term>/errors"}),
    (
        {"algorithm": "sdpo", "algorithm__distillation_weight": 0.5},
        {"self_distillation/policy_loss", *OF_ALGORITHM["sdpo"]},
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3."""
    return model_folder(tmp_path_factory.mktemp("model") / "small")


def always() -> set[str]:
    """Names on every training line; where it stands is added when it is written."""
    return {name for name, when in documented_metrics().items() if when in ("train", "both")} - {"step", "split", "time_s"}


def names(line: dict[str, float]) -> set[str]:
    """Names as the page writes them."""
    return {re.sub(r"rewards/mine\b", "rewards/<term>", name) for name in line}


def test_the_page_knows_them_all() -> None:
    """Every name of this file is on the page, and no component is forgotten."""
    shipped = {group: {name for name in each.names() if each.entry(name).origin.startswith("rlexp.")} for group, each in (("l", LOSSES), ("a", ALGORITHMS))}
    assert set(OF_LOSS) == shipped["l"] and set(OF_ALGORITHM) == shipped["a"]
    mine = set().union(
        *OF_LOSS.values(), *OF_ALGORITHM.values(), *(found for _, found in OPTIONS), FIRST_PASS, FRESH, {"self_distillation/policy_loss"}, {"aux_loss"}
    )
    page = documented_metrics()
    assert {name for name in mine if page.get(name) != "sometimes"} == set()


@pytest.mark.rows("GRPO-239", "GRPO-240", "GRPO-241")
@pytest.mark.parametrize("loss", sorted(OF_LOSS))
def test_of_a_loss(loss: str, model: Path, tmp_path: Path) -> None:
    logged = trained(config_of(model, tmp_path, loss=loss, algorithm__num_iterations=2), tmp_path)
    first, second = logged.train()
    assert names(first) == always() | OF_LOSS[loss] | FIRST_PASS | FRESH
    assert names(second) == always() | OF_LOSS[loss]
    assert all(math.isfinite(value) for value in first.values())


@pytest.mark.rows("RLOO-074", "RLOO-075", "RLOO-024")
@pytest.mark.parametrize("algorithm", sorted(OF_ALGORITHM))
def test_of_an_algorithm(algorithm: str, model: Path, tmp_path: Path) -> None:
    logged = trained(config_of(model, tmp_path, algorithm=algorithm), tmp_path)
    for line in logged.train():
        assert names(line) == always() | OF_ALGORITHM[algorithm] | FIRST_PASS | FRESH
        assert line["grad_norm"] > 0
    check_batch_metrics(logged, greedy=algorithm == "remax")


@pytest.mark.rows("SDPO-093...097", "SDPO-099")
@pytest.mark.parametrize(("weight", "more"), [(0.5, OF_ALGORITHM["sdpo"] | CLIP), (0.0, CLIP)])
def test_of_self_distillation(weight: float, more: set[str], model: Path, tmp_path: Path) -> None:
    logged = trained(config_of(model, tmp_path, algorithm="sdpo", algorithm__distillation_weight=weight), tmp_path)
    for line in logged.train():
        assert names(line) == always() | more | FIRST_PASS | FRESH | {"self_distillation/policy_loss"}
        assert line["grad_norm"] > 0
        policy, distillation = line.get("self_distillation/policy_loss", 0.0), line.get("self_distillation/distillation_loss", 0.0)
        assert line["loss"] == pytest.approx((1 - weight) * policy + weight * distillation)
        assert line.get("sdpo/distillation_loss", 0.0) == distillation
    check_batch_metrics(logged)


@pytest.mark.parametrize(("options", "more"), OPTIONS, ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "")
def test_of_an_option(options: dict[str, Any], more: set[str], model: Path, tmp_path: Path) -> None:
    for line in trained(config_of(model, tmp_path, **options), tmp_path).train():
        assert names(line) == always() | CLIP | more | FIRST_PASS | FRESH


@pytest.mark.rows("GRPO-232")
@pytest.mark.parametrize(("coef", "more"), [(None, {"aux_loss"}), (0.0, set()), (0.1, {"aux_loss"})])
def test_of_a_mixture_of_experts(coef: float | None, more: set[str], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "moe", kind="qwen3_moe")
    config = config_of(folder, tmp_path, dtype="float32", loss__router_aux_loss_coef=coef)
    lines = trained(config, tmp_path).train()
    assert all(names(line) == always() | CLIP | more | FIRST_PASS | FRESH for line in lines)


def std(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def check_batch_metrics(logged: Logged, greedy: bool = False) -> None:
    """Rewards, lengths and token counts of each line against the rollouts of its batch, in plain Python (rows GRPO-208 ... GRPO-223)."""
    tokens = 0
    batches = [rollouts for split, rollouts in logged.batches if split == "train"]
    for line, rollouts in zip(logged.train(), batches, strict=True):
        rewards, lengths = [rollout.reward for rollout in rollouts], [rollout.length for rollout in rollouts]
        groups: dict[tuple[Any, ...], list[float]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.group, []).append(rollout.reward)
        flat = sum(len(each) for each in groups.values() if max(each) == min(each))
        ended = [rollout.length for rollout in rollouts if rollout.turns[-1].finish != "length"] or [0]
        assert line["reward"] == line["rewards/mine/mean"] == pytest.approx(statistics.mean(rewards))
        assert line["reward_std"] == line["rewards/mine/std"] == pytest.approx(std(rewards))
        assert line["frac_reward_zero_std"] == pytest.approx(flat / len(rollouts))
        assert (line["completions/min_length"], line["completions/max_length"]) == (min(lengths), max(lengths))
        assert line["completions/mean_length"] == pytest.approx(statistics.mean(lengths))
        assert (line["completions/min_terminated_length"], line["completions/max_terminated_length"]) == (min(ended), max(ended))
        assert line["completions/mean_terminated_length"] == pytest.approx(statistics.mean(ended))
        assert line["completions/clipped_ratio"] == pytest.approx(sum(rollout.turns[-1].finish == "length" for rollout in rollouts) / len(rollouts))
        tokens += sum(lengths) + sum(len(rollout.turns[0].prompt_ids) for rollout in rollouts)
        assert line["num_tokens"] > tokens if greedy else line["num_tokens"] == tokens
        generated = line["perf/tokens_per_s"] * line["step_time"]
        assert generated > sum(lengths) if greedy else generated == pytest.approx(sum(lengths))
        assert line["step_time"] >= line["perf/update_s"] + sum(line[name] for name in FRESH) - 1e-6


@pytest.mark.rows("GRPO-208...216", "GRPO-219...223")
def test_numbers_of_a_batch(model: Path, tmp_path: Path) -> None:
    config = config_of(model, tmp_path, rollout__max_completion_length=12, trainer__max_steps=3, evaluation__steps=1)
    logged = trained(config, tmp_path)
    check_batch_metrics(logged)
    evaluations = [line for split, line in logged.lines if split == "eval"]
    assert len(evaluations) == 3 and not any({"num_tokens", "step_time"} & line.keys() for line in evaluations), "training only"
    assert {line["frac_reward_zero_std"] for line in logged.train()} != {0.0} or {line["completions/clipped_ratio"] for line in logged.train()} != {1.0}


@pytest.mark.rows("GRPO-224", "GRPO-225")
def test_the_gap_between_sampler_and_trainer(model: Path, tmp_path: Path) -> None:
    """A sampler that is off by 0.1 nats, by 0.6 at first tokens."""
    exact = trained(config_of(model, tmp_path), tmp_path).train()
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-5 for line in exact)

    def off(trainer: Trainer) -> None:
        generator = trainer.parts.source.player.generator
        sample = generator.sample_wave

        def sample_wave(requests: list[Any]) -> list[Any]:
            turns = []
            for turn in sample(requests):
                gap = [0.1] * len(turn.ids)
                gap[0] = 0.6
                turns.append(replace(turn, logprobs=(turn.logprobs - gap).astype("float32")))
            return turns

        generator.sample_wave = sample_wave

    logged = trained(config_of(model, tmp_path, trainer__max_steps=1, algorithm__beta=0.1), tmp_path, off)
    (line,), rollouts = logged.train(), logged.batches[0][1]
    tokens = sum(rollout.length for rollout in rollouts)
    assert line["sampling/sampling_logp_difference/mean"] == pytest.approx((0.1 * tokens + 0.5 * len(rollouts)) / tokens, abs=1e-5)
    assert line["sampling/sampling_logp_difference/max"] == pytest.approx(0.6, abs=1e-5)
