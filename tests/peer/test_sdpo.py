"""Self-distillation: one step of TRL's SDPOTrainer and of algorithm=sdpo on the same rollouts, where both mean the same, and where not on purpose.

On purpose (docs/differences_from_trl.md): the docstring of a test of a difference begins with the entry's bold words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from peer import ours, theirs
from peer.changes import other_reference
from peer.results import assert_same, cosine
from peer.rollouts import Rollouts


@dataclass(frozen=True)
class WithFeedback(Rollouts):
    """Every other task comes with feedback."""

    def rows(self) -> list[dict[str, Any]]:
        """The dataset with the column of feedback."""
        return [{**row, "privileged_context": "it is {not} that" if number % 2 else " "} for number, row in enumerate(super().rows())]


MIXED = Rollouts(rewards=(((1.0, 0.0, 1.0, 0.5), (0.0, 0.0, 1.0, 0.0), (0.0, 0.5, 0.0, 0.0), (0.0, 1.0, 1.0, 1.0)),))
"""a group with its first success first, one with one success, one with none"""
FEEDBACK = WithFeedback(rewards=MIXED.rewards)
OTHERS = ("algorithm=sdpo", "algorithm.dont_reprompt_on_self_success=others")
"""the source's reading"""
MODES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "sampled_token": ((), {}),
    "full_logits": (("algorithm.distillation_mode=full_logits",), {"distillation_mode": "full_logits"}),
    "full_logits-0": (
        ("algorithm.distillation_mode=full_logits", "algorithm.distillation_alpha=0.0"),
        {"distillation_mode": "full_logits", "distillation_alpha": 0.0},
    ),
    "full_logits-0.3": (
        ("algorithm.distillation_mode=full_logits", "algorithm.distillation_alpha=0.3"),
        {"distillation_mode": "full_logits", "distillation_alpha": 0.3},
    ),
    "topk_logits": (
        ("algorithm.distillation_mode=topk_logits", "algorithm.distillation_topk=7"),
        {"distillation_mode": "topk_logits", "distillation_topk": 7},
    ),
    "topk_logits-tail": (
        (
            "algorithm.distillation_mode=topk_logits",
            "algorithm.distillation_topk=7",
            "algorithm.distillation_add_tail=true",
            "algorithm.distillation_alpha=0.5",
        ),
        {"distillation_mode": "topk_logits", "distillation_topk": 7, "distillation_add_tail": True, "distillation_alpha": 0.5},
    ),
}


def compared(model: Path, where: Path, rollouts: Rollouts, overrides: tuple[str, ...], options: dict[str, Any]) -> None:
    """The gradient, the loss and the shares of both."""
    mine = ours.train(where / "ours", model, rollouts, *OTHERS, *overrides)
    peers = theirs.train(where / "theirs", model, rollouts, algorithm="sdpo", **options)
    assert_same(mine.gradients[0], peers.gradients[0])
    assert mine.metrics[0]["loss"] == pytest.approx(peers.metrics[0]["loss"], rel=1e-4, abs=2e-6)
    shared = [name for name in peers.metrics[0] if name.startswith("self_distillation/") and "_loss" not in name and "/rewards/" not in name]
    assert len(shared) == 11
    for name in shared:
        assert mine.metrics[0][name] == pytest.approx(peers.metrics[0][name], abs=1e-6), name


@pytest.mark.rows("SDPO-008...011", "SDPO-013", "SDPO-015", "SDPO-016", "SDPO-041", "SDPO-095...097")
@pytest.mark.parametrize("mode", MODES)
def test_each_mode(mode: str, model: Path, tmp_path: Path) -> None:
    compared(model, tmp_path, MIXED, *MODES[mode])


@pytest.mark.rows("SDPO-017...019")
@pytest.mark.parametrize("teacher", ["live", "base", "ema"])
def test_each_teacher_over_two_steps(teacher: str, model: Path, tmp_path: Path) -> None:
    """In the second step the three differ."""
    overrides = ("algorithm.distillation_mode=full_logits", f"algorithm.teacher_model_kind={teacher}", "algorithm.teacher_update_rate=0.5")
    slow = ("optimizer.learning_rate=0.1",)
    mine = ours.train(tmp_path / "ours", model, MIXED, *OTHERS, *overrides, *slow, steps=2)
    options = {"distillation_mode": "full_logits", "teacher_model_kind": teacher, "teacher_update_rate": 0.5, "learning_rate": 0.1}
    peers = theirs.train(tmp_path / "theirs", model, MIXED, algorithm="sdpo", steps=2, **options)
    for ours_, theirs_ in zip(mine.gradients, peers.gradients, strict=True):
        assert_same(ours_, theirs_)


@pytest.mark.rows("SDPO-025", "SDPO-030", "SDPO-031", "SDPO-038")
@pytest.mark.parametrize("only", [False, True])
def test_feedback(only: bool, model: Path, tmp_path: Path) -> None:
    words = ("algorithm.include_environment_feedback=true", f"algorithm.environment_feedback_only_without_solution={str(only).lower()}")
    options = {"include_environment_feedback": True, "environment_feedback_only_without_solution": only}
    compared(model, tmp_path, FEEDBACK, words, options)


@pytest.mark.rows("SDPO-002", "SDPO-003", "SDPO-043", "SDPO-045", "SDPO-049")
@pytest.mark.parametrize(("loss", "level"), [("grpo", "token"), ("grpo", "sequence"), ("dr_grpo", "token")])
def test_both_parts(loss: str, level: str, model: Path, tmp_path: Path) -> None:
    words = (f"loss={loss}", f"loss.importance_sampling_level={level}", "algorithm.distillation_weight=0.4")
    compared(model, tmp_path, MIXED, words, {"loss_type": loss, "importance_sampling_level": level, "distillation_weight": 0.4})


def pair(model: Path, where: Path, overrides: tuple[str, ...], options: dict[str, Any], rollouts: Rollouts = MIXED) -> tuple[Any, Any]:
    """What each makes of its own defaults and these options."""
    mine = ours.train(where / "ours", model, rollouts, "algorithm=sdpo", *overrides)
    return mine, theirs.train(where / "theirs", model, rollouts, algorithm="sdpo", **options)


@pytest.mark.rows("SDPO-029")
def test_self_success(model: Path, tmp_path: Path) -> None:
    """A successful rollout has no teacher"""
    mine, peers = pair(model, tmp_path, (), {})
    name = "self_distillation/reprompt_sample_fraction"
    assert (mine.metrics[0][name], peers.metrics[0][name]) == (6 / 16, 11 / 16)


@pytest.mark.rows("SDPO-044")
def test_kl(model: Path, other: Path, tmp_path: Path) -> None:
    """`algorithm.beta` acts"""
    change, _ = other_reference(other)
    options: dict[str, Any] = {"distillation_weight": 0.0, "loss_type": "grpo"}
    words = ("algorithm=sdpo", "algorithm.distillation_weight=0", "loss=grpo")
    without, with_kl = (
        ours.train(tmp_path / f"ours{beta}", model, MIXED, *words, f"algorithm.beta={beta}", change=c) for beta, c in ((0, None), (0.5, change))
    )
    peers = [theirs.train(tmp_path / f"theirs{beta}", model, MIXED, algorithm="sdpo", beta=beta, **options).gradients[0] for beta in (0.0, 0.5)]
    assert cosine(without.gradients[0], with_kl.gradients[0]) < 0.999
    assert cosine(*peers) > 0.999999, "theirs reads beta and does not use it"
    assert_same(without.gradients[0], peers[0])


@pytest.mark.rows("SDPO-045")
def test_dapo(model: Path, tmp_path: Path) -> None:
    """dapo's denominator is that of the step in SDPO too"""
    weight = {"distillation_weight": 0.0}
    mine, peers = pair(model, tmp_path, ("algorithm.distillation_weight=0", "loss=dapo"), {**weight, "loss_type": "dapo"})
    as_bnpo = theirs.train(tmp_path / "bnpo", model, MIXED, algorithm="sdpo", loss_type="bnpo", **weight)
    assert cosine(peers.gradients[0], as_bnpo.gradients[0]) > 0.999999, "theirs is bnpo by another name"
    assert cosine(mine.gradients[0], peers.gradients[0]) < 0.9999
    grpo = theirs.train(tmp_path / "grpo", model, MIXED, loss_type="dapo")
    assert_same(mine.gradients[0], grpo.gradients[0])


@pytest.mark.rows("SDPO-015")
def test_dilution(model: Path, tmp_path: Path) -> None:
    """`algorithm.distillation_normalize=active` undoes the dilution"""
    mine, peers = pair(model, tmp_path, (*OTHERS[1:], "algorithm.distillation_normalize=active"), {})
    assert mine.metrics[0]["loss"] == pytest.approx(peers.metrics[0]["loss"] * 16 / 11, rel=1e-4)


@pytest.mark.rows("SDPO-005", "SDPO-014")
def test_the_importance_ratio_of_a_second_pass(model: Path, tmp_path: Path) -> None:
    words = (*OTHERS, "algorithm.teacher_model_kind=base", "algorithm.num_iterations=2", "algorithm.distillation_is_clip=1.5")
    mine = ours.train(tmp_path / "ours", model, MIXED, *words, steps=2)
    options: dict[str, Any] = {"num_iterations": 2, "teacher_model_kind": "base", "distillation_is_clip": 1.5}
    peers = theirs.train(tmp_path / "theirs", model, MIXED, algorithm="sdpo", steps=2, **options)
    for ours_, theirs_ in zip(mine.gradients, peers.gradients, strict=True):
        assert_same(ours_, theirs_)
    free = theirs.train(tmp_path / "free", model, MIXED, algorithm="sdpo", steps=2, **{**options, "distillation_is_clip": None})
    assert cosine(peers.gradients[1], free.gradients[1]) < 0.999, "it acts"


@pytest.mark.rows("SDPO-043")
def test_scale_none(model: Path, tmp_path: Path) -> None:
    """`scale_rewards=none` scales nothing"""
    words = ("algorithm.distillation_weight=0", "loss=grpo", "algorithm.scale_rewards=none")
    mine, peers = pair(model, tmp_path, words, {"distillation_weight": 0.0, "loss_type": "grpo", "scale_rewards": "none"})
    assert float(mine.gradients[0].norm() / peers.gradients[0].norm()) == pytest.approx(1.0001, abs=2e-6)
