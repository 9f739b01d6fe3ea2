"""One optimizer step of the same network on the same rollouts has the same gradient in TRL's trainers and in rlexp's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from peer import ours, theirs
from peer.changes import other_reference, sampled_by_vllm
from peer.ours import RATE
from peer.results import Steps, assert_same
from peer.rollouts import ANSWERS, QUESTIONS, REWARDS, Rollouts
from peer.sampler import near_policy
from trl import GRPOTrainer

ROLLOUTS = Rollouts()
LOSSES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "grpo": ([], {}),
    "bnpo": ([], {"micro_batches": 1}),
    "dr_grpo": ([], {}),
    "dapo": ([], {}),
    "cispo": (["loss.epsilon_high=5.0"], {"epsilon_high": 5.0}),
    "sapo": ([], {}),
    "luspo": (["loss.importance_sampling_level=sequence"], {"importance_sampling_level": "sequence"}),
    "vespo": ([], {}),
}
"""loss -> what both sides set for it, beyond its name. bnpo is defined by its micro-batches, so both have one"""


def compare(mine: Steps, peers: Steps, names: tuple[str, ...] = ("loss", "grad_norm")) -> None:
    """Every step has the same gradient and the same numbers."""
    assert len(mine.gradients) == len(peers.gradients) == len(mine.metrics) == len(peers.metrics)
    for ours_, theirs_, metrics, peer_metrics in zip(mine.gradients, peers.gradients, mine.metrics, peers.metrics, strict=True):
        assert_same(ours_, theirs_)
        assert {name: metrics[name] for name in names} == pytest.approx({name: peer_metrics[name] for name in names}, rel=2e-5, abs=1e-5)


def test_the_fixed_rollouts_are_ragged() -> None:
    assert len(QUESTIONS) == len(ANSWERS) == len(REWARDS) and len({len(question) for question in QUESTIONS}) == 3
    assert sum(len(text) == 12 for texts in ANSWERS for text in texts) == 1, "one completion is cut off"


def test_these_are_all_of_their_losses() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    lists = re.findall(r"self\.loss_type (?:==|in) (\[[^\]]*\]|\"\w+\")", source)
    assert {name for found in lists for name in re.findall(r"\"(\w+)\"", found)} == set(LOSSES)


@pytest.mark.rows("GRPO-006", "GRPO-027", "GRPO-028", "GRPO-029", "GRPO-030", "GRPO-031", "GRPO-032", "GRPO-033", "GRPO-034", "GRPO-035")
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss: str, model: Path, tmp_path: Path) -> None:
    """Two passes: in the first the ratio is 1, in the second it is far from it."""
    overrides, options = LOSSES[loss]
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, f"loss={loss}", "algorithm.num_iterations=2", *overrides, steps=2)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type=loss, num_iterations=2, steps=2, **options)
    compare(mine, peers)
    names = [name for name in peers.metrics[0] if name.startswith(("completions/", "rewards/", "reward", "frac_"))]
    assert len(names) == 12
    for name in names:
        assert mine.metrics[0][name] == pytest.approx(peers.metrics[0][name], rel=1e-6, abs=1e-7), name


@pytest.mark.rows("GRPO-010", "GRPO-023", "GRPO-024", "GRPO-025")
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_with_kl(loss: str, bias_correction: bool, model: Path, other: Path, tmp_path: Path) -> None:
    """The reference is another network, so the KL is there from the first step on."""
    overrides, options = LOSSES[loss]
    overrides = [*overrides, "algorithm.beta=0.05", f"algorithm.use_bias_correction_kl={bias_correction}".lower()]
    change, peers_change = other_reference(other)
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, f"loss={loss}", "algorithm.num_iterations=2", *overrides, steps=2, change=change)
    options = options | {"beta": 0.05, "use_bias_correction_kl": bias_correction, "num_iterations": 2}
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type=loss, steps=2, change=peers_change, **options)
    compare(mine, peers)
    (without,) = ours.train(tmp_path / "without", model, ROLLOUTS, f"loss={loss}", *LOSSES[loss][0]).gradients
    assert (without - mine.gradients[0]).norm() > 0.01 * without.norm(), "the KL term has a part in it"


@pytest.mark.rows("GRPO-170", "GRPO-171", "GRPO-172")
def test_a_reference_that_follows(model: Path, other: Path, tmp_path: Path) -> None:
    """It moves after every second step, so steps 3 and 5 are the first to see it."""
    change, peers_change = other_reference(other)
    moves = ["algorithm.sync_ref_model=true", "algorithm.ref_model_mixup_alpha=0.3", "algorithm.ref_model_sync_steps=2"]
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "algorithm.beta=0.05", "optimizer.learning_rate=0.3", *moves, steps=5, change=change)
    options = {"beta": 0.05, "learning_rate": 0.3, "sync_ref_model": True, "ref_model_mixup_alpha": 0.3, "ref_model_sync_steps": 2}
    compare(mine, theirs.train(tmp_path / "theirs", model, ROLLOUTS, steps=5, change=peers_change, **options))


RLOO: dict[str, tuple[list[str], dict[str, Any]]] = {
    "default": ([], {}),
    "no_kl": (["algorithm.beta=0"], {"beta": 0.0}),
    "normalized": (["algorithm.normalize_advantages=true"], {"normalize_advantages": True}),
    "clipped": (["algorithm.reward_clip_range=[0.2,0.8]"], {"reward_clip_range": (0.2, 0.8)}),
    "masked": (["loss.mask_truncated_completions=true", "loss.epsilon_high=0.4"], {"mask_truncated_completions": True, "epsilon_high": 0.4}),
}
"""their `loss` has a constant for a masked completion (test_differences), so that of the last is not compared"""


@pytest.mark.rows("RLOO-002", "RLOO-003", "RLOO-004", "RLOO-005", "RLOO-010", "RLOO-011", "RLOO-016", "RLOO-021")
@pytest.mark.parametrize("case", RLOO)
def test_rloo(case: str, model: Path, other: Path, tmp_path: Path) -> None:
    """A smaller step than elsewhere: the ratio is of whole sequences, and after a step of 14 it would make 40 times the rounding of float32."""
    overrides, options = RLOO[case]
    rate = RATE / 30
    change, peers_change = other_reference(other) if case != "no_kl" else (None, None)
    overrides = ["algorithm=rloo", "algorithm.num_iterations=2", f"optimizer.learning_rate={rate}", *overrides]
    options = {"algorithm": "rloo", "num_iterations": 2, "learning_rate": rate, **options}
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, *overrides, steps=2, change=change)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, steps=2, change=peers_change, **options)
    compare(mine, peers, ("grad_norm",) if case == "masked" else ("loss", "grad_norm"))
    if case != "no_kl":
        assert mine.metrics[0]["kl"] == pytest.approx(peers.metrics[0]["kl"], rel=1e-5)


UNSCORED = Rollouts(rewards=((*REWARDS[:2], (None, 1.0, 0.0, None), (None, 0.5, None, None)),))
TWO = Rollouts(rewards=(REWARDS, ((0.5, 0.5, 0.5, 0.5), (3.0, 0.0, None, 1.0), (0.0, 2.0, 2.0, 0.0), (1.0, 1.0, 0.0, 5.0))))
OPTIONS: dict[str, tuple[list[str], dict[str, Any], Rollouts]] = {
    "grpo_sequence": (["loss=grpo", "loss.importance_sampling_level=sequence"], {"loss_type": "grpo", "importance_sampling_level": "sequence"}, ROLLOUTS),
    "gspo": (["loss=gspo"], {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}, ROLLOUTS),
    "dapo_sequence": (["loss=dapo", "loss.importance_sampling_level=sequence"], {"loss_type": "dapo", "importance_sampling_level": "sequence"}, ROLLOUTS),
    "dr_grpo_sequence": (
        ["loss=dr_grpo", "loss.importance_sampling_level=sequence"],
        {"loss_type": "dr_grpo", "importance_sampling_level": "sequence"},
        ROLLOUTS,
    ),
    "cispo_sequence": (
        ["loss=cispo", "loss.importance_sampling_level=sequence", "loss.epsilon_high=1.1"],
        {"loss_type": "cispo", "importance_sampling_level": "sequence", "epsilon_high": 1.1},
        ROLLOUTS,
    ),
    "sapo_sequence": (
        ["loss=sapo", "loss.importance_sampling_level=sequence", "loss.sapo_temperature_neg=2"],
        {"loss_type": "sapo", "importance_sampling_level": "sequence", "sapo_temperature_neg": 2.0},
        ROLLOUTS,
    ),
    "vespo_exponents": (
        ["loss=vespo", "loss.vespo_k_pos=1", "loss.vespo_lambda_pos=0.5", "loss.vespo_k_neg=0.5", "loss.vespo_lambda_neg=1"],
        {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.5, "vespo_lambda_neg": 1.0},
        ROLLOUTS,
    ),
    "clip_higher_and_delta": (
        ["loss=dapo", "loss.epsilon=0.1", "loss.epsilon_high=0.3", "loss.delta=1.5"],
        {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.3, "delta": 1.5},
        ROLLOUTS,
    ),
    "masked_dapo": (["loss=dapo", "loss.mask_truncated_completions=true"], {"loss_type": "dapo", "mask_truncated_completions": True}, ROLLOUTS),
    "masked_grpo": (["loss=grpo", "loss.mask_truncated_completions=true"], {"loss_type": "grpo", "mask_truncated_completions": True}, ROLLOUTS),
    "masked_dr_grpo": (["loss=dr_grpo", "loss.mask_truncated_completions=true"], {"loss_type": "dr_grpo", "mask_truncated_completions": True}, ROLLOUTS),
    "temperature": (["loss=dapo", "generation.temperature=0.7"], {"loss_type": "dapo", "temperature": 0.7}, ROLLOUTS),
    "batch_scale": (["loss=grpo", "algorithm.scale_rewards=batch"], {"loss_type": "grpo", "scale_rewards": "batch"}, ROLLOUTS),
    "no_scale": (["loss=dapo", "algorithm.scale_rewards=none"], {"loss_type": "dapo", "scale_rewards": "none"}, ROLLOUTS),
    "unscored": (["loss=grpo"], {"loss_type": "grpo"}, UNSCORED),
    "unscored_batch": (["loss=grpo", "algorithm.scale_rewards=batch"], {"loss_type": "grpo", "scale_rewards": "batch"}, UNSCORED),
    "two_rewards": (
        ["loss=dapo", "reward.terms.first.weight=2", "reward.terms.second.weight=-0.3"],
        {"loss_type": "dapo", "reward_weights": [2.0, -0.3]},
        TWO,
    ),
    "gdpo": (
        ["loss=grpo", "algorithm.multi_objective_aggregation=normalize_then_sum", "reward.terms.first.weight=2", "reward.terms.second.weight=0.7"],
        {"loss_type": "grpo", "multi_objective_aggregation": "normalize_then_sum", "reward_weights": [2.0, 0.7]},
        TWO,
    ),
}


@pytest.mark.rows("GRPO-013", "GRPO-014", "GRPO-016", "GRPO-019", "GRPO-020", "GRPO-036", "GRPO-037", "GRPO-039", "GRPO-046", "GRPO-048")
@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str, model: Path, tmp_path: Path) -> None:
    overrides, options, rollouts = OPTIONS[case]
    mine = ours.train(tmp_path / "ours", model, rollouts, "algorithm.num_iterations=2", *overrides, steps=2)
    peers = theirs.train(tmp_path / "theirs", model, rollouts, num_iterations=2, steps=2, **options)
    compare(mine, peers)


ENTROPY: dict[str, tuple[list[str], dict[str, Any]]] = {
    "bonus": (["loss.entropy_coef=0.3"], {"entropy_coef": 0.3}),
    "quantile": (["loss.top_entropy_quantile=0.4"], {"top_entropy_quantile": 0.4}),
    "bonus_of_quantile": (["loss.top_entropy_quantile=0.4", "loss.entropy_coef=0.3"], {"top_entropy_quantile": 0.4, "entropy_coef": 0.3}),
    "adaptive": (
        ["loss.use_adaptive_entropy=true", "loss.entropy_coef=0.2", "loss.entropy_coef_delta=0.05", "loss.entropy_target=4.3"],
        {"use_adaptive_entropy": True, "entropy_coef": 0.2, "entropy_coef_delta": 0.05, "entropy_target": 4.3},
    ),
}


@pytest.mark.rows("GRPO-067", "GRPO-069", "GRPO-070", "GRPO-076")
@pytest.mark.parametrize("case", ENTROPY)
def test_entropy_in_one_micro_batch(case: str, model: Path, tmp_path: Path) -> None:
    """Theirs is a mean, or a quantile, of each micro-batch, so both sides have one. Fresh batches: an entropy mask of ours is that of the sampling policy."""
    overrides, options = ENTROPY[case]
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "loss=grpo", "optimizer.learning_rate=0.1", *overrides, steps=3)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type="grpo", learning_rate=0.1, micro_batches=1, steps=3, **options)
    compare(mine, peers)
    (plain,) = ours.train(tmp_path / "plain", model, ROLLOUTS, "loss=grpo").gradients
    changed = 1 if case == "adaptive" else 0
    assert (mine.gradients[changed] - plain).norm() > 0.01 * plain.norm()


CORRECTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "token_truncate": (["correction.clip_max=1.5"], {"clip_max": 1.5}),
    "token_mask": (["correction.clip_min=0.6", "correction.clip_max=1.5"], {"clip_min": 0.6, "clip_max": 1.5}),
    "sequence_truncate": (["correction.clip_min=0.8", "correction.clip_max=2.0"], {"clip_min": 0.8, "clip_max": 2.0}),
    "sequence_mask": ([], {}),
}


@pytest.mark.rows("GRPO-052", "GRPO-053", "GRPO-054", "GRPO-055", "GRPO-056", "GRPO-063")
@pytest.mark.parametrize(("loss", "mode"), [(loss, mode) for loss in ("dapo", "luspo", "vespo") for mode in CORRECTIONS if loss != "vespo" or mode[0] == "t"])
def test_corrections(loss: str, mode: str, model: Path, tmp_path: Path) -> None:
    """Their correction is for vLLM only; the sampler's log-probs here are the policy's with noise. Both refuse vespo by rollout."""
    overrides, bounds = CORRECTIONS[mode]
    rollouts = near_policy(model, ROLLOUTS)
    arguments = (f"loss={loss}", f"correction={mode}", "algorithm.num_iterations=2", *overrides, *LOSSES[loss][0])
    mine = ours.train(tmp_path / "ours", model, rollouts, *arguments, steps=2)
    options = LOSSES[loss][1] | {f"vllm_importance_sampling_{name}": value for name, value in bounds.items()} | {"vllm_importance_sampling_mode": mode}
    peers = theirs.train(tmp_path / "theirs", model, rollouts, loss_type=loss, num_iterations=2, steps=2, change=sampled_by_vllm, **options)
    compare(mine, peers)
    names = [name for name in peers.metrics[0] if name.startswith("sampling/")]
    assert {name: mine.metrics[0][name] for name in names} == pytest.approx({name: peers.metrics[0][name] for name in names}, rel=1e-4)


@pytest.mark.rows("GRPO-064")
def test_off_policy_mask(model: Path, tmp_path: Path) -> None:
    rollouts = near_policy(model, ROLLOUTS, seed=3)
    arguments = ("loss=dapo", "algorithm.num_iterations=2")
    mine = ours.train(tmp_path / "ours", model, rollouts, *arguments, "loss.off_policy_mask_threshold=0.05", steps=2)
    peers = theirs.train(tmp_path / "theirs", model, rollouts, loss_type="dapo", num_iterations=2, steps=2, off_policy_mask_threshold=0.05)
    compare(mine, peers)
    plain = ours.train(tmp_path / "plain", model, rollouts, *arguments, steps=2)
    assert (mine.gradients[0] - plain.gradients[0]).norm() > 0.01 * plain.gradients[0].norm()
