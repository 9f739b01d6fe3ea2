"""Which models have routers whose load is balanced, and by how much."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlexp.config.errors import UserError

ROUTER = "router"
"""name under which a network's forward gives the load-balancing loss of its row, a scalar beside the columns"""
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "top_k_experts")
"""names that configs give to the number of experts of a token"""


def causal_of(module: Any) -> Any:
    """The transformers model, below a peft wrapper if there is one."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def _text_config(causal: Any) -> Any:
    """The part of the model's config that is about text."""
    return causal.config.get_text_config() if hasattr(causal.config, "get_text_config") else causal.config


def experts_per_token(causal: Any) -> int:
    """Experts that a token is sent to, 0 where the config does not say."""
    config = _text_config(causal)
    return next((int(getattr(config, name)) for name in _TOP_K if getattr(config, name, None)), 0)


@torch.no_grad()
def has_router(causal: Any) -> bool:
    """Whether a forward of the model gives router logits. Tried on one token, because some families have mixtures in a part of their sizes only."""
    config = _text_config(causal)
    if not hasattr(config, "output_router_logits") or not experts_per_token(causal):
        return False
    ids = torch.zeros(1, 1, dtype=torch.long, device=next(causal.parameters()).device)
    return bool(getattr(causal.base_model(input_ids=ids, output_router_logits=True, use_cache=False), "router_logits", None))


def router_coefficient(module: nn.Module, given: float | None) -> float:
    """Weight of the load-balancing loss: what loss.router_aux_loss_coef gives, else the model config's; 0 for a model without routers.

    Raises UserError for a coefficient that is given to such a model (rows GRPO-047, GRPO-266).
    """
    causal = causal_of(module)
    config = _text_config(causal)
    if has_router(causal):
        return float(given if given is not None else getattr(config, "router_aux_loss_coef", None) or 0.0)
    if given is not None:
        raise UserError(f"loss.router_aux_loss_coef={given:g} is for mixture-of-experts models, and {type(causal).__name__} has no router: leave it out")
    return 0.0
