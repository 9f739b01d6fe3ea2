"""What docs/differences_from_trl.md says about sampling, models, rewards and metrics as far as it reaches the objective, with both numbers.

The first line of each docstring is the entry's bold text.
"""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peer import ours, theirs
from peer.changes import sampled_by_vllm
from peer.results import cosine
from peer.rollouts import REWARDS, Rollouts
from peer.sampler import kept_masses, near_policy, policy_logprobs
from transformers import AutoModelForCausalLM

from rlexp.config.errors import UserError

ROLLOUTS = Rollouts()


def test_every_entry_about_the_objective_is_shown() -> None:
    """There is a test of each entry about the loss and about metrics, and each test here is of an entry."""
    page = (Path(__file__).parents[2] / "docs" / "differences_from_trl.md").read_text(encoding="utf-8")
    sections = {section.partition("\n")[0]: section for section in page.split("\n## ")[1:]}
    entries = {name: re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE) for name, text in sections.items()}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("test_*differences.py")]
    tests = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    shown = {(ast.get_docstring(test) or "").partition("\n")[0].strip() for test in tests if test.name != "test_every_entry_about_the_objective_is_shown"}
    assert {*entries["Loss"], *entries["Metrics"]} - shown == set(), "entries without a test"
    assert shown - {entry for found in entries.values() for entry in found} == set(), "tests of entries that the page does not have"


def test_truncated_sampling(model: Path, tmp_path: Path) -> None:
    """Truncated sampling is not biased.

    vLLM normalises over the kept tokens, theirs over all: each weight is the kept mass. Ours are 1, for the kept tokens travel with each turn.
    """
    masses = kept_masses(model, ROLLOUTS, top=20)
    policy = policy_logprobs(model, ROLLOUTS)
    sampler = [[[x - math.log(m) for x, m in zip(a, b, strict=True)] for a, b in zip(g, h, strict=True)] for g, h in zip(policy, masses, strict=True)]
    options: dict[str, Any] = {"change": sampled_by_vllm, "vllm_importance_sampling_mode": "token_truncate"}
    peer = theirs.train(tmp_path / "theirs", model, ROLLOUTS.changed(logprobs=sampler), **options).metrics[0]
    flat = [mass for group in masses for tokens in group for mass in tokens]
    name = "sampling/importance_sampling_ratio"
    assert peer[f"{name}/max"] == pytest.approx(max(flat), rel=1e-4) and max(flat) < 0.9
    length = "reward.terms.length={name: overlong, max_length: 12, buffer: 11}"
    mine = ours.train(
        tmp_path / "ours", model, ROLLOUTS.changed(rewards=()), "generation=native", "generation.top_k=20", "correction=token_truncate", length
    ).metrics[0]
    assert (mine[f"{name}/min"], mine[f"{name}/max"]) == (pytest.approx(1.0, abs=1e-5), pytest.approx(1.0, abs=1e-5))


def test_stop_strings(model: Path, tmp_path: Path) -> None:
    """ "Truncated" is what the generator says.

    A stop string ended one completion: theirs looks for an EOS token, finds none, and leaves it out.
    """
    rollouts = ROLLOUTS.changed(ended=frozenset({(2, 1)}))
    mine = ours.train(tmp_path / "ours", model, rollouts, "loss.mask_truncated_completions=true")
    peers = theirs.train(tmp_path / "theirs", model, rollouts, mask_truncated_completions=True)
    assert (mine.metrics[0]["completions/clipped_ratio"], peers.metrics[0]["completions/clipped_ratio"]) == (1 / 16, 2 / 16)
    assert cosine(mine.gradients[0], peers.gradients[0]) < 0.999


def test_dropout(model: Path, tmp_path: Path) -> None:
    """Dropout is off

    With dropout in the config theirs trains with it unless told otherwise: old log-probs and ratios of the very first step come from other masks.
    """
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "algorithm.num_iterations=2", steps=2)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, attention_dropout=0.5, num_iterations=2, steps=2)
    assert (mine.metrics[0]["clip_ratio/region_mean"], mine.metrics[1]["clip_ratio/region_mean"] > 0.1) == (0.0, True)
    assert peers.metrics[0]["clip_ratio/region_mean"] > 0.01


def test_reference(model: Path, other: Path, tmp_path: Path) -> None:
    """The reference is a copy of the weights given

    The policy is changed after loading: theirs takes the reference from the folder again, so there is a KL before the first step.
    """
    weights = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32).state_dict()

    def started_from(trainer: Any) -> None:
        """What run.start_from does."""
        trainer.parts.trainables["policy"].network.module.load_state_dict(weights)
        trainer.restart_companions()

    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "algorithm.beta=0.1", change=started_from)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, beta=0.1, weights=weights)
    assert mine.metrics[0]["kl"] == 0.0 and peers.metrics[0]["kl"] > 1.0


def test_a_nan_reward(model: Path, tmp_path: Path) -> None:
    """NaN and infinity are errors"""
    rollouts = Rollouts(rewards=(((float("nan"), *REWARDS[0][1:]), *REWARDS[1:]),))
    with pytest.raises(UserError, match="nan"):
        ours.train(tmp_path / "ours", model, rollouts)
    assert theirs.train(tmp_path / "theirs", model, rollouts).gradients[0].norm() > 0.1


def test_sums(model: Path, tmp_path: Path) -> None:
    """Sums over sums.

    Of the 94 tokens in the second pass; theirs is a mean over the 4 micro-batches' numbers, also of an extreme.
    """
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "algorithm.num_iterations=2", steps=2).metrics[1]
    whole = theirs.train(tmp_path / "whole", model, ROLLOUTS, num_iterations=2, steps=2, micro_batches=1).metrics[1]
    parts = theirs.train(tmp_path / "parts", model, ROLLOUTS, num_iterations=2, steps=2).metrics[1]
    for name in ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio/high_max", "entropy"):
        assert mine[name] == pytest.approx(whole[name], rel=1e-5), "in one micro-batch they agree"
        assert abs(mine[name] - parts[name]) > 1e-4
    assert (mine["clip_ratio/high_max"], parts["clip_ratio/high_max"] < 0.8) == (0.875, True)


def test_logp_difference(model: Path, tmp_path: Path) -> None:
    """`sampling/sampling_logp_difference` is always logged"""
    rollouts = near_policy(model, ROLLOUTS)
    name = "sampling/sampling_logp_difference/mean"
    mine = ours.train(tmp_path / "ours", model, rollouts).metrics[0]
    without = theirs.train(tmp_path / "without", model, rollouts).metrics[0]
    by_vllm = theirs.train(tmp_path / "theirs", model, rollouts, change=sampled_by_vllm).metrics[0]
    assert name not in without and mine[name] == pytest.approx(by_vllm[name], rel=1e-5)


def test_lines(model: Path, tmp_path: Path) -> None:
    """One line per step"""
    assert len(ours.train(tmp_path / "ours", model, ROLLOUTS, "optimizer.learning_rate=0", steps=2).metrics) == 2
    assert len(theirs.train(tmp_path / "theirs", model, ROLLOUTS, learning_rate=0.0, steps=2, logging_steps=2).metrics) == 1


def test_entropy_coefficient(model: Path, tmp_path: Path) -> None:
    """`entropy_coef` is the coefficient of the step it is logged with

    Theirs is that of the next step.
    """
    arguments = ("loss.use_adaptive_entropy=true", "loss.entropy_coef=0.2", "loss.entropy_coef_delta=0.05", "loss.entropy_target=4.5")
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, *arguments, "optimizer.learning_rate=0", steps=3)
    options: dict[str, Any] = {"use_adaptive_entropy": True, "entropy_coef": 0.2, "entropy_coef_delta": 0.05, "entropy_target": 4.5}
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, learning_rate=0.0, steps=3, **options)
    assert [metrics["entropy_coef"] for metrics in mine.metrics] == pytest.approx([0.2, 0.25, 0.3])
    assert [metrics["entropy_coef"] for metrics in peers.metrics] == pytest.approx([0.25, 0.3, 0.35])
