"""What docs/differences_from_trl.md says about losses, with both numbers. The first line of each docstring is the entry's bold text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trl.trainer.grpo_trainer
from peer import ours, theirs
from peer.changes import counted_forwards, other_reference, sampled_by_vllm
from peer.networks import saved
from peer.results import assert_same, cosine
from peer.rollouts import ANSWERS, REWARDS, Rollouts
from peer.sampler import near_policy, policy_logprobs
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlexp.config.errors import UserError

ROLLOUTS = Rollouts()
FLAT = Rollouts(rewards=((REWARDS[0], (0.5,) * 4, *REWARDS[2:]),))
"""the second group has no signal"""
HALVES: dict[str, Any] = {"micro_batches": 8, "gradient_accumulation_steps": 4, "steps_per_generation": 8, "steps": 2, "learning_rate": 0.0}
"""two optimizer steps from one generation batch, with weights that stay where they are"""
TWO_STEPS = ("trainer.steps_per_batch=2", "optimizer.learning_rate=0")


def lengths(model: Path, rollouts: Rollouts) -> list[list[int]]:
    """Sampled tokens by [task][rollout]."""
    return [[len(ids) for ids in group] for group in rollouts.ids(AutoTokenizer.from_pretrained(model))]


def refused(*overrides: str) -> str:
    """The message of a command line that is refused before anything is loaded."""
    paths = ("model.path=x", "data.path=x", "generation.path=x", "reward.terms.first={name: custom, path: 'peer.rollouts:first'}")
    with pytest.raises(UserError) as error:
        ours.configured(*ours.BASE, *paths, "trainer.max_steps=1", *overrides)
    return str(error.value)


def test_dapo_denominator(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dapo denominator is that of each step.

    Without TRL's permutation both sides cut at the same place; their steps then weigh N_step / (N / 2) as much as a token mean would.
    """
    monkeypatch.setattr(trl.trainer.grpo_trainer, "shuffle_sequence_dict", lambda batch: batch)
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, *TWO_STEPS, steps=2)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, **HALVES)
    by_task = [sum(group) for group in lengths(model, ROLLOUTS)]
    counts = [sum(by_task[:2]), sum(by_task[2:])]
    assert counts == [49, 45]
    for gradient, peer, count in zip(mine.gradients, peers.gradients, counts, strict=True):
        assert_same(gradient * count / (sum(counts) / 2), peer)


def test_order_of_rollouts_in_steps(model: Path, tmp_path: Path) -> None:
    """A step is cut in seeded order, groups end to end.

    Single steps differ; their sum, where each rollout weighs 1/B in its step, does not.
    """
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "loss=grpo", *TWO_STEPS, steps=2)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type="grpo", **HALVES)
    assert cosine(mine.gradients[0], peers.gradients[0]) < 0.9 and cosine(mine.gradients[1], peers.gradients[1]) < 0.9
    assert_same(mine.gradients[0] + mine.gradients[1], peers.gradients[0] + peers.gradients[1])


def test_bnpo(model: Path, tmp_path: Path) -> None:
    """bnpo averages over packed rows.

    Theirs has a mean over 4 micro-batches of 4 rollouts; ours over all 16 rollouts, that fit one row, or over rows of at most 60 tokens.
    """
    (one,) = ours.train(tmp_path / "one", model, ROLLOUTS, "loss=bnpo").gradients
    (rows,) = ours.train(tmp_path / "rows", model, ROLLOUTS, "loss=bnpo", "trainer.tokens_per_microbatch=60").gradients
    (peer,) = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type="bnpo").gradients
    assert max(cosine(one, rows), cosine(one, peer), cosine(rows, peer)) < 0.999


def test_flat_groups(model: Path, tmp_path: Path) -> None:
    """Groups without signal are not forwarded.

    The gradient and the loss are the same, the entropy is a mean over what was forwarded; forwarded for an entropy bonus, it is theirs.
    """
    mine = ours.train(tmp_path / "ours", model, FLAT, "algorithm.num_iterations=2", steps=2)
    peers = theirs.train(tmp_path / "theirs", model, FLAT, num_iterations=2, micro_batches=1, steps=2)
    for gradient, peer, metrics, peer_metrics in zip(mine.gradients, peers.gradients, mine.metrics, peers.metrics, strict=True):
        assert_same(gradient, peer)
        assert metrics["loss"] == pytest.approx(peer_metrics["loss"], abs=1e-5)
    forwarded = ours.train(tmp_path / "forwarded", model, FLAT, "loss.entropy_coef=1e-12").metrics[0]["entropy"]
    assert forwarded == pytest.approx(peers.metrics[0]["entropy"], rel=1e-6)
    assert (mine.metrics[0]["entropy"], forwarded) == (pytest.approx(4.26646, abs=1e-4), pytest.approx(4.24644, abs=1e-4))


def test_equal_rewards(model: Path, tmp_path: Path) -> None:
    """Equal rewards are recognised by largest = smallest

    Three rewards of 0.9 have a float32 mean that is not 0.9, so their advantages are not 0 and the optimizer steps on rounding errors.
    """
    flat = Rollouts(answers=tuple(texts[:3] for texts in ANSWERS), rewards=(((0.9,) * 3,) * 4,))
    mine = ours.train(tmp_path / "ours", model, flat)
    peers = theirs.train(tmp_path / "theirs", model, flat)
    assert mine.gradients == [] and mine.metrics[0]["loss"] == 0.0
    assert peers.gradients[0].norm() > 1e-4


def test_forwards(model: Path, tmp_path: Path) -> None:
    """Old log-probs of a first pass are not recomputed."""
    for passes, theirs_scored in ((1, 0), (2, 4)):
        counts, mine, _ = counted_forwards()
        ours.train(tmp_path / "ours", model, ROLLOUTS, f"algorithm.num_iterations={passes}", steps=passes, change=mine)
        peer_counts, _, peers = counted_forwards()
        theirs.train(tmp_path / "theirs", model, ROLLOUTS, num_iterations=passes, steps=passes, change=peers)
        assert counts["training"] >= passes and peer_counts["training"] == 4 * passes
        assert (counts["scoring"], peer_counts["scoring"]) == (0, theirs_scored)


def test_rloo_forwards(model: Path, tmp_path: Path) -> None:
    """RLOO takes its old log-probs from the first pass"""
    counts, mine, _ = counted_forwards()
    (gradient,) = ours.train(tmp_path / "ours", model, FLAT, "algorithm=rloo", "algorithm.beta=0", change=mine).gradients
    peer_counts, _, peers = counted_forwards()
    (peer,) = theirs.train(tmp_path / "theirs", model, FLAT, algorithm="rloo", beta=0.0, change=peers).gradients
    assert_same(gradient, peer)
    assert (counts["scoring"], peer_counts["scoring"]) == (0, 4)


def test_rloo_masked(model: Path, tmp_path: Path) -> None:
    """A masked rollout adds nothing to the `loss` of rloo

    Theirs has -A / B for it, without a gradient: its ratio is the product over no tokens, 1.
    """
    arguments = ("algorithm=rloo", "algorithm.beta=0", "loss.mask_truncated_completions=true")
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, *arguments)
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, algorithm="rloo", beta=0.0, mask_truncated_completions=True)
    assert_same(mine.gradients[0], peers.gradients[0])
    masked = 0.25 - (1.0 + 0.0 + 0.0) / 3
    assert ANSWERS[1][2] == "3*4=12 twelv" and REWARDS[1] == (1.0, 0.0, 0.25, 0.0)
    assert mine.metrics[0]["loss"] == pytest.approx(masked / 16, abs=1e-6)
    assert peers.metrics[0]["loss"] == pytest.approx(0.0, abs=1e-6)


@pytest.fixture(scope="module")
def peaked(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network with logits 300 times as large: most sampled tokens are all but impossible."""
    folder = tmp_path_factory.mktemp("peaked")
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        network.get_output_embeddings().weight.mul_(300)
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def test_overflow(peaked: Path, model: Path, tmp_path: Path) -> None:
    """Exponentials are capped.

    The reference gives a token exp(100) times the policy's probability: the KL term overflows in theirs, and training goes on with NaN weights.
    """
    change, peers_change = other_reference(model)
    mine = ours.train(tmp_path / "ours", peaked, ROLLOUTS, "algorithm.beta=0.1", change=change)
    peers = theirs.train(tmp_path / "theirs", peaked, ROLLOUTS, beta=0.1, change=peers_change)
    assert torch.isfinite(mine.gradients[0]).all() and mine.metrics[0]["kl"] > 1e6
    assert not torch.isfinite(peers.gradients[0]).all() and peers.metrics[0]["kl"] == float("inf")


def test_masks(peaked: Path, model: Path, tmp_path: Path) -> None:
    """Masks come before exponentials

    The tokens whose KL overflows are masked on both sides: 0 times infinity is NaN in theirs.
    """
    policy, reference = policy_logprobs(peaked, ROLLOUTS), policy_logprobs(model, ROLLOUTS)
    keep = [[[r - p < 50 for p, r in zip(a, b, strict=True)] for a, b in zip(g, h, strict=True)] for g, h in zip(policy, reference, strict=True)]
    kept = sum(token for group in keep for tokens in group for token in tokens)
    assert 0 < kept < 94
    change, peers_change = other_reference(model)
    rollouts = ROLLOUTS.changed(logprobs=[[[-2.0 if token else None for token in tokens] for tokens in group] for group in keep])
    mine = ours.train(tmp_path / "ours", peaked, rollouts, "algorithm.beta=0.1", "generation.on_missing_logprob=mask", change=change)
    peers = theirs.train(tmp_path / "theirs", peaked, rollouts.changed(trained=keep), beta=0.1, change=peers_change)
    assert mine.metrics[0]["sampling/missing_logprobs"] == 94 - kept
    assert torch.isfinite(mine.gradients[0]).all() and not torch.isfinite(peers.gradients[0]).all()


def with_a_gap(model: Path) -> Rollouts:
    """Sampler log-probs near the policy's; one is missing."""
    rollouts = near_policy(model, ROLLOUTS)
    logprobs = [[list(tokens) for tokens in group] for group in rollouts.logprobs or ()]
    logprobs[0][3][2] = None
    return rollouts.changed(logprobs=logprobs)


def test_a_missing_number(model: Path, tmp_path: Path) -> None:
    """A number that is missing stops the run."""
    rollouts = with_a_gap(model)
    (peer,) = theirs.train(tmp_path / "theirs", model, rollouts).gradients
    with pytest.raises(UserError, match=r"no log-prob at step 1, rollout .*, token 2"):
        ours.train(tmp_path / "ours", model, rollouts)
    mine = ours.train(tmp_path / "masked", model, rollouts, "generation.on_missing_logprob=mask")
    assert mine.metrics[0]["sampling/missing_logprobs"] == 1.0
    assert cosine(mine.gradients[0], peer) < 0.9999, "the token is left out in ours and counts in theirs"


def test_a_missing_weight(model: Path, tmp_path: Path) -> None:
    """A sampler's weight is never 1 for want of a number

    Theirs is 1 there, which is what a sampler log-prob equal to the policy's gives.
    """
    rollouts = with_a_gap(model)
    equal = [[list(tokens) for tokens in group] for group in rollouts.logprobs or ()]
    equal[0][3][2] = policy_logprobs(model, ROLLOUTS)[0][3][2]
    options: dict[str, Any] = {"change": sampled_by_vllm, "vllm_importance_sampling_mode": "token_truncate"}
    (peer,) = theirs.train(tmp_path / "theirs", model, rollouts, **options).gradients
    (as_one,) = ours.train(tmp_path / "one", model, rollouts.changed(logprobs=equal), "correction=token_truncate").gradients
    assert_same(as_one, peer)
    (mine,) = ours.train(tmp_path / "ours", model, rollouts, "correction=token_truncate", "generation.on_missing_logprob=mask").gradients
    assert cosine(mine, peer) < 0.9999


def test_products(model: Path, tmp_path: Path) -> None:
    """Products over whole rollouts have a length-normalised form

    A gap of 0.5 per token: every product of 3 tokens or more leaves the bounds, every geometric mean is exp(0.5).
    """
    logprobs = [[[x - 0.5 for x in tokens] for tokens in group] for group in policy_logprobs(model, ROLLOUTS)]
    rollouts = ROLLOUTS.changed(logprobs=logprobs)
    (plain,) = ours.train(tmp_path / "plain", model, rollouts).gradients
    (mine,) = ours.train(tmp_path / "ours", model, rollouts, "correction=sequence_mask", "correction.normalize=true").gradients
    peers = theirs.train(tmp_path / "theirs", model, rollouts, change=sampled_by_vllm)
    assert_same(mine, plain * 1.6487212707)
    kept = sum(length == 2 for group in lengths(model, ROLLOUTS) for length in group)
    assert peers.metrics[0]["sampling/importance_sampling_ratio/mean"] == pytest.approx(kept * 2.7182818 / 16, rel=1e-4)
    assert cosine(peers.gradients[0], plain) < 0.8


def test_delta(model: Path, tmp_path: Path) -> None:
    """`loss.delta` must exceed 1 + `loss.epsilon`

    Below it is a second clip of the upper side, which theirs applies.
    """
    assert "loss.delta=1.1" in refused("loss=dapo", "loss.delta=1.1")
    below, without = (
        theirs.train(tmp_path / name, model, ROLLOUTS, num_iterations=2, steps=2, delta=delta).gradients[1] for name, delta in (("below", 1.1), ("no", None))
    )
    assert cosine(below, without) < 0.99


def test_entropy_bonus(model: Path, tmp_path: Path) -> None:
    """The entropy bonus is a mean over the step

    The bonus is `policy_loss` - `loss` at coefficient 1: over 94 tokens in ours, over 4 micro-batches' own means in theirs. So with the threshold.
    """
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "loss=grpo", "loss.entropy_coef=1")
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type="grpo", entropy_coef=1.0)
    bonus, peer_bonus = (metrics["policy_loss"] - metrics["loss"] for metrics in (mine.metrics[0], peers.metrics[0]))
    assert bonus == pytest.approx(mine.metrics[0]["entropy"], abs=1e-5) and bonus == pytest.approx(4.24644, abs=1e-4)
    assert abs(peer_bonus - bonus) > 1e-4 and peer_bonus == pytest.approx(peers.metrics[0]["entropy"], abs=1e-5)
    (top,) = ours.train(tmp_path / "top", model, ROLLOUTS, "loss=grpo", "loss.top_entropy_quantile=0.4").gradients
    (peer_top,) = theirs.train(tmp_path / "peer_top", model, ROLLOUTS, loss_type="grpo", top_entropy_quantile=0.4).gradients
    assert cosine(top, peer_top) < 0.999


def test_cispo_bound(model: Path, tmp_path: Path) -> None:
    """cispo's bound is 5.0 unless set

    On-policy every ratio is 1, which theirs cuts to 0.2.
    """
    (mine,) = ours.train(tmp_path / "ours", model, ROLLOUTS, "loss=cispo").gradients
    (peer,) = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type="cispo").gradients
    assert_same(mine * 0.2, peer)


def test_luspo_by_token(model: Path, tmp_path: Path) -> None:
    """luspo needs the sequence ratio"""
    assert "loss.importance_sampling_level=token" in refused("loss=luspo", "loss.importance_sampling_level=token")
    by_token = theirs.train(tmp_path / "theirs", model, ROLLOUTS, loss_type="luspo", num_iterations=2, steps=2)
    assert by_token.gradients[0].norm() > 0.1, "their default, with a warning: every token a ratio of its own, in a sum over rollouts"


def test_vespo_level(model: Path, other: Path, tmp_path: Path) -> None:
    """vespo has no `importance_sampling_level`

    Theirs has one, which a KL term with bias correction sees.
    """
    assert "loss.importance_sampling_level" in refused("loss=vespo", "loss.importance_sampling_level=sequence")
    change, peers_change = other_reference(other)
    mine = ours.train(tmp_path / "ours", model, ROLLOUTS, "loss=vespo", "algorithm.beta=0.3", "algorithm.num_iterations=2", steps=2, change=change)
    options: dict[str, Any] = {"loss_type": "vespo", "beta": 0.3, "num_iterations": 2, "steps": 2, "change": peers_change}
    peers = theirs.train(tmp_path / "theirs", model, ROLLOUTS, importance_sampling_level="sequence", **options)
    assert cosine(mine.gradients[1], peers.gradients[1]) < 0.999


def test_gdpo_flat(model: Path, tmp_path: Path) -> None:
    """`normalize_then_sum` (GDPO) leaves out a group only if every single reward is equal in it

    In the first group two rewards cancel in the total: it still teaches; `frac_reward_zero_std` counts it in ours, theirs asks about the batch.
    """
    opposite = tuple(1.0 - reward for reward in REWARDS[0])
    rollouts = Rollouts(rewards=(REWARDS, (opposite, *REWARDS[1:])))
    arguments = ("loss=grpo", "algorithm.multi_objective_aggregation=normalize_then_sum")
    mine = ours.train(tmp_path / "ours", model, rollouts, *arguments)
    peers = theirs.train(tmp_path / "theirs", model, rollouts, loss_type="grpo", multi_objective_aggregation="normalize_then_sum")
    assert_same(mine.gradients[0], peers.gradients[0])
    assert (mine.metrics[0]["frac_reward_zero_std"], peers.metrics[0]["frac_reward_zero_std"]) == (0.25, 0.0)
    assert "reward_clip_range" in refused(*arguments, "algorithm.reward_clip_range=[0,1]")


def test_vespo_by_rollout(model: Path, tmp_path: Path) -> None:
    """vespo with vLLM corrects by token"""
    assert "correction" in refused("loss=vespo", "correction=sequence_mask")
    with pytest.raises(ValueError, match="VESPO loss requires"):
        theirs.train(tmp_path, model, ROLLOUTS, loss_type="vespo", use_vllm=True)


def test_router_loss(tmp_path: Path) -> None:
    """The router loss is averaged over rows by their positions

    Ours over the rollouts without their last tokens, which no forward sees. In one micro-batch theirs has the last tokens besides.
    """
    mixture = saved(tmp_path / "mixture", seed=0, kind="qwen3_moe")
    mine = ours.train(tmp_path / "ours", mixture, ROLLOUTS).metrics[0]["aux_loss"]
    whole, parts = (theirs.train(tmp_path / f"{count}", mixture, ROLLOUTS, micro_batches=count).metrics[0]["aux_loss"] for count in (1, 4))
    network, tokenizer = AutoModelForCausalLM.from_pretrained(mixture), AutoTokenizer.from_pretrained(mixture)
    prompts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in ROLLOUTS.rows()]
    sequences = [[*tokenizer(text)["input_ids"], *ids] for text, group in zip(prompts, ROLLOUTS.ids(tokenizer), strict=True) for ids in group]

    def padded(last: int) -> float:
        """transformers' number for the sequences without so many last tokens."""
        cut = [ids[: len(ids) - last] for ids in sequences]
        length = max(map(len, cut))
        ids = torch.tensor([[*tokens, *[0] * (length - len(tokens))] for tokens in cut])
        mask = torch.tensor([[1] * len(tokens) + [0] * (length - len(tokens)) for tokens in cut])
        with torch.no_grad():
            return float(network(input_ids=ids, attention_mask=mask, output_router_logits=True).aux_loss)

    assert (mine, whole) == (pytest.approx(padded(1), rel=1e-5), pytest.approx(padded(0), rel=1e-5))
    assert len({round(value, 4) for value in (mine, whole, parts)}) == 3
