"""The load-balancing loss of mixture-of-experts models: experts x sum_e share of choices of e x mean probability of e."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def load_balancing(router_logits: Sequence[Tensor], weight_T: Tensor, top_k: int) -> Tensor:
    """Loss of one row, a scalar with gradient (Switch Transformer, arXiv 2101.03961, eq. 4 to 6, over all layers as one; at least top_k).

    router_logits: [T, E] of each mixture layer. weight_T: how often a position counts, e.g. samples that share it; with ones it is
    transformers' load_balancing_loss_func without padding. The choices carry no gradient, the probabilities do. Means of a product are
    not products of means, so the loss of a step depends on how it is cut into rows.
    """
    experts = router_logits[0].shape[-1]
    dtype = torch.promote_types(router_logits[0].dtype, torch.float32)
    chosen_E = torch.zeros(experts, dtype=dtype, device=weight_T.device)
    probability_E = torch.zeros_like(chosen_E)
    weight_T = weight_T.to(dtype)
    for logits_TE in router_logits:
        probability_TE = torch.softmax(logits_TE.to(dtype), dim=-1)
        indices_TK = probability_TE.topk(top_k, dim=-1).indices
        chosen_E = chosen_E.index_add(0, indices_TK.flatten(), weight_T.repeat_interleave(top_k))
        probability_E = probability_E + weight_T @ probability_TE
    total = weight_T.sum().clamp(min=1) * len(router_logits)
    return experts * (chosen_E / total * probability_E / total).sum()
