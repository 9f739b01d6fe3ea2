"""The distribution that is sampled from, against hand numbers and transformers' own processors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rlexp.generation.sampling import TIE, draw, nucleus
from rlexp.records.keys import key, uniforms
from rlexp.records.request import Sampling

TABLE = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
JUST_BELOW_ONE = 1 - 2.0**-53


def at(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.cases("S12")
@pytest.mark.rows("GRPO-060", "GRPO-078")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("top_k", [0, 4])
def test_nucleus_is_renormalised_over_what_is_kept(dtype: torch.dtype, top_k: int) -> None:
    drawn = draw(TABLE.log().to(dtype).expand(2, -1), Sampling(top_p=0.8, top_k=top_k), at([0.1, 0.9]))
    assert drawn.ids.tolist() == [0, 1]
    assert drawn.logprobs.tolist() == pytest.approx([-0.470004, -0.980829], abs=1e-6)
    assert drawn.kept.tolist() == [[True, True, False, False]] * 2


@pytest.mark.rows("GRPO-077", "GRPO-078", "GRPO-079", "GRPO-080", "GRPO-081")
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=5),
        Sampling(top_p=0.63),
        Sampling(min_p=0.2),
        Sampling(repetition_penalty=1.7),
        Sampling(0.6, 0.9, 12, 0.05, 1.3),
        Sampling(1.4, 0.55, 30, None, 0.8),
        Sampling(top_k=1000),
    ],
    ids=str,
)
def test_order_and_meaning_are_transformers(sampling: Sampling) -> None:
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 40, generator=random, dtype=torch.float64) * 2
    context = torch.randint(0, 40, (6, 9), generator=random)
    expected = logits.clone()
    if sampling.repetition_penalty != 1:
        expected = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(context, expected)
    expected = TemperatureLogitsWarper(sampling.temperature)(context, expected)
    if sampling.top_k:
        expected = TopKLogitsWarper(sampling.top_k)(context, expected)
    if sampling.top_p < 1:
        expected = TopPLogitsWarper(sampling.top_p)(context, expected)
    if sampling.min_p:
        expected = MinPLogitsWarper(sampling.min_p)(context, expected)
    expected = expected.log_softmax(-1)
    seen = torch.zeros(6, 40, dtype=torch.bool).scatter(1, context, True)

    drawn = draw(logits, sampling, torch.rand(6, generator=random, dtype=torch.float64), seen)

    assert torch.allclose(drawn.logprobs, expected.gather(1, drawn.ids[:, None])[:, 0], atol=1e-12)
    if sampling.truncated:
        assert torch.equal(drawn.kept, expected > -torch.inf)
    else:
        assert drawn.kept is None


def test_the_most_likely_token_is_always_kept() -> None:
    for sampling in (Sampling(top_p=1e-9), Sampling(top_k=1), Sampling(min_p=1.0)):
        drawn = draw(TABLE.log(), sampling, at([JUST_BELOW_ONE]))
        assert (drawn.ids.item(), drawn.logprobs.item(), drawn.kept.sum().item()) == (0, 0.0, 1)


def test_draws_are_the_inverse_of_the_cumulative_distribution() -> None:
    count = 2000
    drawn = draw(TABLE.log().expand(count, -1), Sampling(), (torch.arange(count, dtype=torch.float64) + 0.5) / count)
    assert torch.bincount(drawn.ids).tolist() == [1000, 600, 300, 100]
    assert (drawn.ids.diff() >= 0).all()


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 2.0, -math.inf]]).expand(2, -1)
    assert draw(logits, Sampling(), at([0.0, JUST_BELOW_ONE])).ids.tolist() == [1, 3]


def test_rare_tokens_of_a_large_vocabulary_keep_their_share() -> None:
    logits = torch.zeros(1, 200_000)
    logits[0, 0] = 30.0  # the others have 1e-13 each, 2e-8 together: a float32 sum from 1 on would lose them all
    share = 199_999 * math.exp(-30.0) / (1 + 199_999 * math.exp(-30.0))
    assert draw(logits, Sampling(), at([1 - share / 2])).ids.item() == pytest.approx(100_000, abs=5000)


@pytest.mark.cases("S25")
def test_temperature_zero_takes_the_most_likely() -> None:
    drawn = draw(TABLE.log(), Sampling(temperature=0.0, top_p=0.5), at([JUST_BELOW_ONE]))
    assert (drawn.ids.item(), drawn.kept) == (0, None)
    assert drawn.logprobs.item() == pytest.approx(math.log(0.5), abs=1e-12)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9), Sampling(top_k=2), Sampling(min_p=0.1)], ids=str)
def test_nan_logits_show_in_the_logprob(sampling: Sampling) -> None:
    logits = torch.tensor([[0.0, math.nan, 1.0], [0.0, 1.0, 2.0]])
    drawn = draw(logits, sampling, at([0.5, 0.5]))
    assert drawn.logprobs.isnan().tolist() == [True, False]


def test_low_precision_logits_get_float32_statistics() -> None:
    drawn = draw(TABLE.log().to(torch.bfloat16), Sampling(), at([0.2]))
    assert drawn.logprobs.dtype == torch.float32


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    uniform = torch.from_numpy(uniforms(np.array([key(1, i) for i in range(5)], np.uint64), 0))
    together = draw(logits, Sampling(top_p=0.7), uniform)
    alone = [draw(logits[i : i + 1], Sampling(top_p=0.7), uniform[i : i + 1]) for i in range(5)]
    assert together.ids.tolist() == [one.ids.item() for one in alone]
    assert together.logprobs.tolist() == [one.logprobs.item() for one in alone]


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_a_nucleus_equals_that_of_a_whole_stable_sort(spread: float, top_p: float) -> None:
    """Flat distributions need most of the vocabulary; rounded ones are full of ties, which the lower id wins."""
    scores = (spread * torch.randn(4, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4).round() / 4
    scores[2, 100:] = -math.inf
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    inside = probability.cumsum(-1) - probability < top_p - TIE
    assert torch.equal(nucleus(scores, top_p), torch.zeros_like(inside).scatter(-1, order, inside))
