"""Rows: tries under a budget, equally many on every process, every term exactly once."""

from __future__ import annotations

import numpy as np
import pytest

from rlexp.batching.packer import _fill, pack
from rlexp.batching.terms import flatten
from rlexp.records.sample import Context, Sample


def sample(ids: list[int], trained: int, **kwargs: object) -> Sample:
    array = np.array(ids)
    position = np.arange(len(ids) - trained - 1, len(ids) - 1)
    return Sample("policy", 0, array, position, array[position + 1], np.zeros(trained, np.float32), **kwargs)


def random_samples(seed: int, count: int = 30) -> list[Sample]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        prompt = [[1, 2, 3], [1, 2, 4, 5], [9]][random.integers(3)]
        answer = random.integers(20, 23, size=random.integers(1, 8)).tolist()
        made.append(sample(prompt + answer, len(answer)))
    return made


def literal_trie_size(samples: list[Sample]) -> int:
    return len({tuple(item.ids[: n + 1]) for item in samples for n in range(int(item.position_L[-1]) + 1)})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("budget", [12, 40, 10_000])
def test_every_term_once_within_the_budget_and_evenly_spread(seed: int, world: int, budget: int) -> None:
    samples = random_samples(seed)
    terms = flatten(samples)
    ranks = pack(samples, terms, range(len(samples)), budget=budget, world=world)
    assert len({len(rows) for rows in ranks}) == 1
    real = [micro.row for rows in ranks for micro in rows if not micro.filler]
    assert sorted(np.concatenate([row.term_L for row in real]).tolist()) == list(range(terms.count))
    assert all(row.tokens <= budget for row in real)
    for row in real:
        mine = [samples[s] for s in sorted(set(terms.sample_L[row.term_L].tolist()))]
        assert row.tokens == literal_trie_size(mine), "a shared prefix is forwarded once"


@pytest.mark.parametrize("seed", range(3))
def test_mask_is_the_ancestor_relation_and_depth_the_place_in_the_sample(seed: int) -> None:
    samples = random_samples(seed, 12)
    terms = flatten(samples)
    row = pack(samples, terms, range(len(samples)), budget=10_000)[0][0].row
    here = np.arange(row.tokens)
    seen = (here[None, :] <= here[:, None]) & (here[:, None] < row.end_T[None, :])
    for position, term in zip(row.position_L, row.term_L, strict=True):
        item = samples[terms.sample_L[term]]
        place = item.position_L[term - terms.offsets_S[terms.sample_L[term]]]
        path = np.flatnonzero(seen[position])
        assert row.ids_T[path].tolist() == item.ids[: place + 1].tolist()
        assert row.depth_T[path].tolist() == list(range(place + 1))


def test_ties_stay_together_and_companions_fit_too() -> None:
    samples = [sample([1, 2, 3, 30 + i, 40 + i], 2, keep_together=i % 2) for i in range(6)]
    for item in samples:
        item.companions["teacher"] = Context(np.concatenate([[7, 7], item.ids]), item.position_L + 2)
    terms = flatten(samples)
    rows = pack(samples, terms, range(6), budget=8, companions=("teacher",))[0]
    for micro in rows:
        assert len({samples[s].keep_together for s in terms.sample_L[micro.row.term_L]}) == 1
        assert micro.companions["teacher"].term_L.tolist() == micro.row.term_L.tolist()
        assert micro.companions["teacher"].tokens <= 8
    assert len(rows) == 2


def test_what_fits_no_row_is_refused_and_nothing_gives_nothing() -> None:
    samples = [sample(list(range(1, 20)), 3)]
    with pytest.raises(ValueError, match=r"18 tokens exceeds trainer\.tokens_per_microbatch=10"):
        pack(samples, flatten(samples), [0], budget=10)
    assert pack([], flatten([]), [], budget=10, world=2) == [[], []]


def literal_fill(alone: list[list[int]], after: list[list[int]], budget: int) -> list[int]:
    starts: list[int] = []
    used: list[int] = []
    for i, first in enumerate(alone):
        used = [a + b for a, b in zip(used, after[i], strict=True)] if starts else []
        if not starts or max(used) > budget:
            starts.append(i)
            used = first
    return starts


@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_filled_unit_by_unit(seed: int, kinds: int) -> None:
    random = np.random.default_rng(seed)
    alone = random.integers(1, 20, size=(40, kinds))
    after = np.minimum(alone, random.integers(0, 20, size=(40, kinds)))
    for budget in (int(alone.max()), 25, 60, 10_000):
        assert _fill(alone, after, budget) == literal_fill(alone.tolist(), after.tolist(), budget)
