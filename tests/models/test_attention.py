"""Attention backends for packed rows: each sees exactly the ancestors, and all give one set of numbers and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlexp.batching.row import Branch, Row, build_row
from rlexp.config.errors import UserError
from rlexp.models.attention import interface, tiles, varlen
from rlexp.models.attention.dense import dense_mask
from rlexp.models.attention.flex import BLOCK, Flex
from rlexp.models.attention.tiled import Tiled
from rlexp.models.attention.tiles import LONGEST, OVERHEAD, tiles_of
from rlexp.models.attention.varlen import Varlen
from rlexp.models.network import Network, RowTensors
from rlexp.models.recompute import recompute_activations


def row(seed: int, branches: int = 12, vocabulary: int = 3, longest: int = 14, shared: int = 0) -> Row:
    """A random trie: few letters make many forks, prefixes of other branches, and repeated branches."""
    random = np.random.default_rng(seed)
    prefix = random.integers(0, vocabulary, shared)
    made, terms = [], 0
    for _ in range(branches):
        ids = np.concatenate([prefix, random.integers(0, vocabulary, random.integers(2, longest))])
        made.append(Branch.of(ids, np.arange(len(ids) - 1), np.arange(terms, terms + len(ids) - 1)))
        terms += len(ids) - 1
    return build_row("policy", made)


def seen(item: Row) -> np.ndarray:
    """[T, T]: whether the query of a row sees the key of a column, from the definition."""
    here = np.arange(item.tokens)
    return (here[None, :] <= here[:, None]) & (here[:, None] < item.end_T[None, :])


def states(item: Row, dtype: torch.dtype = torch.float64, heads: int = 4, shared_by: int = 2, width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(item.tokens)
    shapes = [(1, count, item.tokens, width) for count in (heads, heads // shared_by, heads // shared_by)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def literal(query: Tensor, key: Tensor, value: Tensor, item: Row, scale: float) -> Tensor:
    """Softmax attention written out over all pairs."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scale
    weights = scores.masked_fill(~torch.from_numpy(seen(item)), float("-inf")).softmax(-1)
    return weights @ value.repeat_interleave(groups, 1)


ROWS = [row(0), row(1, branches=40, longest=30), row(2, vocabulary=2, branches=30), row(3, branches=1, longest=40), row(4, shared=150, branches=25, longest=40)]


@pytest.mark.parametrize("item", ROWS, ids=lambda item: f"{item.tokens} tokens")
@pytest.mark.parametrize(("overhead", "longest"), [(0, 10**6), (0, 3), (30, 7), (500, 256), (1e9, 256)])
def test_tiles_cover_each_position_and_see_all_ancestors(item: Row, overhead: float, longest: int) -> None:
    made = tiles_of(item.end_T, item.depth_T, overhead=overhead, longest=longest)
    assert [position for tile in made for position in range(tile.start, tile.stop)] == list(range(item.tokens))
    for tile in made:
        visible = seen(item)[tile.start : tile.stop]
        index = tile.key_index
        assert not np.delete(visible, index, axis=1).any(), "no ancestor is left out"
        assert np.array_equal(index[-tile.queries :], np.arange(tile.start, tile.stop)) and tile.width == len(index)
        if tile.chain:
            assert np.array_equal(visible[:, index], np.tri(tile.queries, tile.width, tile.width - tile.queries, dtype=bool))
    if overhead == 0:
        assert all(tile.chain for tile in made)


def test_tiles_do_little_work_where_much_is_shared() -> None:
    random = np.random.default_rng(0)
    branches = []
    for _ in range(8):
        prompt = random.integers(0, 90, 200)
        branches += [np.concatenate([prompt, random.integers(0, 90, 45)]) for _ in range(8)]
    item = build_row("policy", [Branch.of(ids, np.array([len(ids) - 1]), np.array([i])) for i, ids in enumerate(branches)])
    work = sum(tile.queries * tile.width for tile in tiles_of(item.end_T, item.depth_T, overhead=OVERHEAD, longest=LONGEST))
    assert work < 1.1 * 8 * (200 * 200 + 8 * 45 * 245) < item.tokens**2 / 10


@pytest.mark.parametrize("item", ROWS, ids=lambda item: f"{item.tokens} tokens")
@pytest.mark.parametrize(("overhead", "longest"), [(0, 10**6), (0, 3), (30, 7), (1e9, 256)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tiled_equals_the_literal_form(item: Row, overhead: float, longest: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "OVERHEAD", overhead)
    monkeypatch.setattr(tiles, "LONGEST", longest)
    _compare(item, Tiled(item.end_T, item.depth_T, dtype), dtype)


@pytest.mark.parametrize("item", ROWS, ids=lambda item: f"{item.tokens} tokens")
@torch.no_grad()
def test_flex_equals_the_literal_form(item: Row) -> None:
    """Forward only: the backward runs on a GPU (scripts/gpu_check.py)."""
    inputs = [values.detach() for values in states(item, torch.float32)]
    assert torch.allclose(Flex(item.end_T, torch.device("cpu"))(*inputs, 0.3), literal(*inputs, item, 0.3), atol=2e-5, rtol=0)


def _compare(item: Row, attention: Callable[..., Tensor], dtype: torch.dtype) -> None:
    inputs = states(item, dtype)
    weights = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    mine, theirs = attention(*inputs, 0.3), literal(*inputs, item, 0.3)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    assert torch.allclose(mine, theirs, atol=tolerance, rtol=0)
    gradients = [torch.autograd.grad((out * weights).sum(), inputs) for out in (mine, theirs)]
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=10 * tolerance, rtol=0)


def test_block_mask_names_the_blocks_that_hold_pairs() -> None:
    item = row(5, branches=60, shared=180, longest=60)
    found = Flex(item.end_T, torch.device("cpu"))._mask
    blocks = -(-item.tokens // BLOCK)
    padded = np.zeros((blocks * BLOCK, blocks * BLOCK), bool)
    padded[: item.tokens, : item.tokens] = seen(item)
    tiled = padded.reshape(blocks, BLOCK, blocks, BLOCK).transpose(0, 2, 1, 3)
    whole, some = tiled.all((2, 3)), tiled.any((2, 3))
    assert blocks > 5 and whole.any() and not some[np.tril_indices(blocks)].all()
    for counts, indices, wanted in (
        (found.full_kv_num_blocks, found.full_kv_indices, whole),
        (found.kv_num_blocks, found.kv_indices, some & ~whole),
    ):
        for query in range(blocks):
            chosen = set(indices[0, 0, query, : counts[0, 0, query]].tolist())
            missing = set(np.flatnonzero(wanted[query]).tolist()) - chosen
            assert not missing, "a block with pairs must be computed"
            assert counts is found.kv_num_blocks or chosen == set(np.flatnonzero(wanted[query]).tolist())


def _varlen(query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, *longest: int, scale: float, **options: object) -> Tensor:
    """What the kernel promises: sequence by sequence, causal, aligned to the end."""
    assert options == {"window_size": (-1, 0), "enable_gqa": True}
    out = []
    for (a, b), (c, d) in zip(itertools.pairwise(query_offsets), itertools.pairwise(key_offsets), strict=True):
        assert b - a <= longest[0] and d - c <= longest[1]
        q, k, v = query[a:b].transpose(0, 1), key[c:d].transpose(0, 1), value[c:d].transpose(0, 1)
        groups = len(q) // len(k)
        scores = q @ k.repeat_interleave(groups, 0).transpose(-1, -2) * scale
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(int((d - c) - (b - a)))
        out.append((scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v.repeat_interleave(groups, 0)).transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("item", ROWS, ids=lambda item: f"{item.tokens} tokens")
def test_varlen_lays_out_the_sequences_its_kernel_needs(item: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself runs on a GPU only (scripts/gpu_check.py); here its documented behaviour stands in for it."""
    monkeypatch.setattr(varlen, "varlen_attn", _varlen)
    _compare(item, Varlen(item.end_T, item.depth_T, torch.device("cpu")), torch.float64)


class _Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["sdpa", "tiles"])
def test_recomputed_activations_give_the_same_gradient(name: str) -> None:
    item = ROWS[1]
    arrays = (item.ids_T, item.depth_T, item.end_T, item.position_L[item.position_L > 0], item.ids_T)

    def gradient(mode: str | None) -> tuple[Tensor, int]:
        network = Network(tiny_model(spread=2.0, dtype=torch.float32), attention=name)
        if mode is not None:
            recompute_activations(network.module, mode)
        network.train()
        with _Products() as products:
            network.hidden(RowTensors(*map(torch.from_numpy, arrays))).square().sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]), products.count

    (plain, products), (full, more), (selective, same) = (gradient(mode) for mode in (None, "full", "selective"))
    assert torch.allclose(full, plain, atol=1e-5, rtol=1e-5) and torch.allclose(selective, plain, atol=1e-5, rtol=1e-5)
    assert products == same < more, "selective recomputation repeats no product"


def test_auto_falls_back_where_a_model_needs_its_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interface.CHECKED, "cpu", "tiles")  # whatever --attention says
    loaded = tiny_model()
    loaded.module.config.attention_dropout = 0.1
    assert Network(loaded).attention == "sdpa"
    with pytest.raises(UserError, match=r"model\.attention=tiles cannot serve Qwen3ForCausalLM: it has attention dropout"):
        Network(loaded, attention="tiles")
    with pytest.raises(UserError, match=r"model\.attention=varlen runs on cuda only"):
        Network(tiny_model(), attention="varlen")
    assert Network(tiny_model()).attention == "tiles"


def test_the_packed_attention_does_not_enter_a_saved_model(tmp_path) -> None:
    loaded = tiny_model()
    Network(loaded)
    loaded.module.save_pretrained(tmp_path)
    assert "packed" not in (tmp_path / "config.json").read_text()
    assert dense_mask(torch.tensor([2, 2]), torch.float32)[0, 0, 0, 1] < -1e30


def test_compiled_backbone_gives_the_same_gradient() -> None:
    """One compilation serves rows of other lengths and the model's recomputed activations."""
    plain, compiled = (Network(tiny_model(spread=2.0, dtype=torch.float32, layers=1), compile=chosen) for chosen in (False, True))
    for item in ROWS[:2]:
        found = []
        for network in (plain, compiled):
            network.zero_grad()
            tensors = RowTensors(*(torch.from_numpy(values) for values in (item.ids_T, item.depth_T, item.end_T, item.position_L, item.ids_T[item.position_L])))
            network.train()(tensors, ["logp"])["logp"].sum().backward()
            found.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]))
        assert torch.allclose(*found, atol=2e-4, rtol=1e-3)
