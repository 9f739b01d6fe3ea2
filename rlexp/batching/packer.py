"""Which samples share a row: trie order, a token budget, and equally many rows on every process.

Samples are laid in trie order (so those of one group, which share their prompt, stand together) and cut into rows of at most
`budget` forwarded tokens. The number of rows is rounded up to a multiple of the processes, and the rows are then made as even as
that number allows, so that no process waits for a fuller row than necessary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlexp.batching.row import Branch, Row, build_row, common_prefix, trie_order
from rlexp.batching.terms import Terms
from rlexp.records.sample import Sample


@dataclass
class MicroBatch:
    """What one process forwards at once for one model: its row, and the rows its companions read for the same terms."""

    row: Row
    companions: dict[str, Row] = field(default_factory=dict)
    filler: bool = False
    """a copy of another row with nothing to add, so that every process makes equally many forwards"""


class _Unit:
    """Samples that must stay in one row, in trie order, with one list of branches per sequence kind ("" is the sample itself)."""

    def __init__(self, branches: dict[str, list[Branch]]) -> None:
        self.branches = {kind: [items[i] for i in trie_order(items)] for kind, items in branches.items()}

    def cost(self, kind: str, previous: np.ndarray) -> int:
        """Upper bound of the forwarded tokens this unit adds after `previous`: exact for a single sample."""
        total = 0
        for branch in self.branches[kind]:
            total += len(branch.ids) - common_prefix(previous, branch.ids)
            previous = branch.ids
        return total


def branch_of(samples: Sequence[Sample], terms: Terms, number: int, kind: str = "") -> Branch:
    """The branch of a sample, or of the sequence its companion `kind` reads."""
    term_L = np.arange(terms.offsets_S[number], terms.offsets_S[number + 1])
    sample = samples[number]
    source = sample.companions[kind] if kind else sample
    return Branch.of(source.ids, source.position_L, term_L)


def _units(samples: Sequence[Sample], terms: Terms, chosen: Sequence[int], kinds: Sequence[str]) -> list[_Unit]:
    together: dict[object, list[int]] = {}
    for number in chosen:
        tie = samples[number].keep_together
        together.setdefault(("tie", tie) if tie is not None else ("alone", number), []).append(number)
    units = [_Unit({kind: [branch_of(samples, terms, n, kind) for n in numbers] for kind in kinds}) for numbers in together.values()]
    order = trie_order([unit.branches[""][0] for unit in units])
    return [units[i] for i in order]


def _fill(alone: np.ndarray, after: np.ndarray, budget: int) -> list[int]:
    """Next fit in order: index of the first unit of each row. alone, after [units, kinds]: forwarded tokens of a unit that opens a
    row, and of one that follows its predecessor in the same row. A unit opens a new row when any kind would exceed the budget, which no unit
    alone may do."""
    so_far = np.cumsum(after, axis=0)
    starts: list[int] = []
    start = 0
    while start < len(alone):
        starts.append(start)
        fits = budget - alone[start] + so_far[start]
        start = min(int(np.searchsorted(so_far[:, kind], most, side="right")) for kind, most in enumerate(fits))
    return starts


def _cut(units: Sequence[_Unit], kinds: Sequence[str], budget: int, world: int) -> list[Sequence[_Unit]]:
    """Units to rows: as few as the budget allows, rounded up to a multiple of world, then as even as that number allows."""
    nothing = np.zeros(0, np.int64)
    alone = np.array([[unit.cost(kind, nothing) for kind in kinds] for unit in units])
    if alone.max() > budget:
        raise ValueError(f"a sample of {alone.max()} tokens exceeds trainer.tokens_per_microbatch={budget}")
    ends = [{kind: unit.branches[kind][-1].ids for kind in kinds} for unit in units]
    after = np.array([[unit.cost(kind, before.get(kind, nothing)) for kind in kinds] for unit, before in zip(units, [{}, *ends[:-1]], strict=True)])
    wanted = -(-len(_fill(alone, after, budget)) // world) * world
    low, high = int(alone.max()), budget
    while low < high:
        middle = (low + high) // 2
        if len(_fill(alone, after, middle)) <= wanted:
            high = middle
        else:
            low = middle + 1
    starts = _fill(alone, after, low)
    return [units[start:end] for start, end in zip(starts, [*starts[1:], len(units)], strict=True)]


def pack(
    samples: Sequence[Sample], terms: Terms, chosen: Sequence[int], *, budget: int, world: int = 1, companions: Sequence[str] = ()
) -> list[list[MicroBatch]]:
    """Rows for the chosen samples (all of one model).

    Returns one list per process, all equally long. budget: most forwarded tokens of a row, for the samples and for each
    companion's sequences. companions: names whose sequences travel with the samples.
    Raises ValueError when one unit alone exceeds the budget.
    """
    if not chosen:
        return [[] for _ in range(world)]
    kinds = ("", *companions)
    units = _units(samples, terms, chosen, kinds)
    model = samples[chosen[0]].model
    made = []
    for row_units in _cut(units, kinds, budget, world):
        rows = {kind: build_row(model, [branch for unit in row_units for branch in unit.branches[kind]]) for kind in kinds}
        made.append(MicroBatch(rows[""], {kind: rows[kind] for kind in companions}))
    while len(made) % world:
        made.append(MicroBatch(made[-1].row, made[-1].companions, filler=True))
    return [made[rank::world] for rank in range(world)]
