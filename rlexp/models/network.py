"""One network of the loop: a transformers causal model that forwards packed rows and returns columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.batching.row import Row
from rlexp.batching.shares import samples_through
from rlexp.batching.terms import SUPPORT, Terms
from rlexp.config.errors import UserError
from rlexp.losses.router import load_balancing
from rlexp.models.attention import interface as attention_interface
from rlexp.models.attention.interface import PackedAttention
from rlexp.models.columns import COLUMNS, Chunk, Column
from rlexp.models.head import columns_of
from rlexp.models.loaded import LoadedModel
from rlexp.models.router import ROUTER, causal_of, experts_per_token

MOST_LOGITS = 2**24
"""Logits that exist at once, whatever the chunk: 64 MiB in float32"""


def _call(backbone: nn.Module, **inputs: Any) -> Any:
    return backbone(**inputs)


@functools.cache
def _compiled_call() -> Callable[..., Any]:
    """`_call` by torch.compile, one for the process; made on first use, since importing the compiler takes seconds."""
    return torch.compile(_call, dynamic=True)


@dataclass
class RowTensors:
    """A row on the device of its network."""

    ids_T: Tensor
    depth_T: Tensor
    end_T: Tensor
    position_L: Tensor
    target_L: Tensor
    candidates_LC: Tensor | None = None
    candidates_mask_LC: Tensor | None = None
    support_LC: Tensor | None = None
    """token ids whose log-probs the column support_logp gives"""
    samples_T: Tensor | None = None
    """samples that share each position, int64 [T], for the loss of routers"""
    companions: dict[str, tuple[Network, Tensor]] = field(default_factory=dict)
    """by name: the companion and the hidden states that predict the same terms, [L, D], without gradient"""
    layouts: dict[str, PackedAttention] = field(default_factory=dict)
    """attention of this row, made once for all layers and passes"""


def row_tensors(row: Row, terms: Terms, device: torch.device, *, shares: bool = False) -> RowTensors:
    """A row's positions and its terms' targets and candidates as tensors. shares: samples_T too, which ROUTER needs."""

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    made = RowTensors(tensor(row.ids_T), tensor(row.depth_T), tensor(row.end_T), tensor(row.position_L), tensor(terms.target_L[row.term_L]))
    if shares:
        made.samples_T = tensor(samples_through(row, terms))
    if SUPPORT in terms.extra:
        made.support_LC = tensor(terms.extra[SUPPORT][row.term_L].astype(np.int64))
    if terms.candidates is not None:
        ids, mask = terms.candidates.take(row.term_L).padded()
        made.candidates_LC, made.candidates_mask_LC = tensor(ids), tensor(mask)
    return made


class Network(nn.Module):
    """A loaded model inside the loop.

    temperature: logits are divided by it in every pass, so that log-probs are those of the sampling distribution. chunk: loss terms
    whose logits exist at once. autocast: dtype of the backbone's matrix products; None leaves the weights' dtype. attention: of
    packed rows, a value of `model.attention`. compile: run the backbone through torch.compile (sampling stays as it is). device: where it will
    compute, if that is not where it is now.
    Raises UserError for an architecture whose output is not head(backbone(x)), or with attention other than full.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        temperature: float = 1.0,
        chunk: int = 256,
        autocast: torch.dtype | None = None,
        attention: str = "auto",
        compile: bool = False,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.module = loaded.module
        self.own_columns: dict[str, Column] = {}
        self.temperature, self.chunk, self.autocast, self.compiled = temperature, chunk, autocast, compile
        causal = self.causal
        config = causal.config.get_text_config() if hasattr(causal.config, "get_text_config") else causal.config
        other = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
        if other:
            names = ", ".join(sorted(other))
            raise UserError(f"model {loaded.label}: attention layers of type {names} cannot be trained on packed rows; choose a model with full attention")
        if not isinstance(self.head, nn.Linear):
            raise UserError(f"model {loaded.label}: its head is a {type(self.head).__name__}; choose a model whose output head is a linear layer")
        self.scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
        self.soft_cap = getattr(config, "final_logit_softcapping", None)
        self.attention = attention_interface.resolve(attention, causal, device or self.device)

    @property
    def provides(self) -> frozenset[str]:
        """Columns it can give."""
        return frozenset(COLUMNS | self.own_columns)

    @property
    def causal(self) -> Any:
        """The transformers model, below a peft wrapper if there is one."""
        return causal_of(self.module)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.module.parameters()).device

    @property
    def head(self) -> nn.Linear:
        """The output projection from hidden states to the vocabulary."""
        head: nn.Linear = self.causal.get_output_embeddings()
        return head

    def hidden(self, row: RowTensors) -> Tensor:
        """Hidden states that predict each term, [L, D]."""
        return self._backbone(row).last_hidden_state[0].index_select(0, row.position_L)

    def _backbone(self, row: RowTensors, **options: bool) -> Any:
        dtype = next(self.module.parameters()).dtype
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            attention = attention_interface.arguments(self.attention, row, self.autocast or dtype, row.layouts)
            call = _compiled_call() if self.compiled else _call
            return call(self.causal.base_model, input_ids=row.ids_T[None], position_ids=row.depth_T[None], use_cache=False, **attention, **options)

    def project(self, hidden_KD: Tensor) -> Tensor:
        """What the head gives, [K, V], in the dtype it computes in."""
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            # not as a module: ranks have different numbers of chunks, and under ZeRO-3 each call of a module is an exchange between them
            output: Tensor = self.head.forward(hidden_KD)
        return output

    def logits(self, output_KV: Tensor) -> Tensor:
        """Logits [K, V] of the sampling distribution in at least float32, from the head's output: scale, soft cap, temperature."""
        logits = output_KV.to(torch.promote_types(output_KV.dtype, torch.float32))
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits / self.temperature if self.temperature != 1.0 else logits

    def forward(self, row: RowTensors, names: Sequence[str]) -> dict[str, Tensor]:
        """The named columns of the row's loss terms, each [L]; and, if asked for, ROUTER: the load-balancing loss of the row, a scalar."""
        output = self._backbone(row, **({"output_router_logits": True} if ROUTER in names else {}))
        hidden_LD = output.last_hidden_state[0].index_select(0, row.position_L)

        def make(output_KV: Tensor, where: slice) -> Chunk:
            with torch.no_grad():
                companion_logits = {name: network.logits(network.project(states[where])) for name, (network, states) in row.companions.items()}
            kept = row.candidates_LC is not None
            return Chunk(
                self.logits(output_KV),
                row.target_L[where],
                row.candidates_LC[where] if kept else None,  # type: ignore[index]
                row.candidates_mask_LC[where] if kept else None,  # type: ignore[index]
                companion_logits,
                row.support_LC[where] if row.support_LC is not None else None,
            )

        chunk = max(1, min(self.chunk, MOST_LOGITS // self.head.weight.shape[0]))
        known = COLUMNS | self.own_columns
        columns = columns_of(self.project, make, {name: known[name] for name in names if name != ROUTER}, chunk, hidden_LD, self.head)
        if ROUTER in names:
            assert row.samples_T is not None
            columns[ROUTER] = load_balancing(output.router_logits, row.samples_T, experts_per_token(self.causal))
        return columns

    @torch.no_grad()
    def check(self) -> None:
        """Compare a small packed row with the model's own output on each of its branches; raises UserError when they differ."""
        last = min(4, self.causal.config.get_text_config().vocab_size) - 1
        prefix = [0] * 2
        branches = torch.tensor([[*prefix, 1 % (last + 1)], [*prefix, last]], device=self.device)
        ids = torch.cat([branches[0], branches[1, -1:]])
        here = torch.arange(4, device=self.device)
        row = RowTensors(ids, torch.tensor([0, 1, 2, 2], device=self.device), torch.tensor([4, 4, 3, 4], device=self.device), here, ids)
        mine = self.logits(self.project(self.hidden(row))) * self.temperature
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            output = self.causal(input_ids=branches).logits
        theirs = torch.cat([output[0], output[1, -1:]]).to(mine.dtype)
        if not torch.allclose(mine, theirs, atol=1e-2 if self.autocast else 1e-3, rtol=1e-3):
            largest = float((mine - theirs).abs().max())
            raise UserError(f"model {type(self.causal).__name__} computes its logits in a way that is not supported (largest difference {largest:.3g})")
