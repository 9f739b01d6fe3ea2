"""SAPO: a smooth gate around ratio 1 instead of a clip."""

from __future__ import annotations

import torch

from rlexp.config.losses import SAPOLossConfig
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import importance_ratio


def sapo(inputs: LossInputs, config: SAPOLossConfig) -> PolicyTerm:
    """Soft adaptive policy optimisation (arXiv 2511.20347, the gated objective and its gate f): -A 4/tau sigmoid(tau (r - 1)) for each term.

    tau is sapo_temperature_pos where A > 0 and sapo_temperature_neg elsewhere. At r = 1 the slope in r is 1, as without a gate,
    and it fades smoothly on both sides, faster for larger tau. The value there is 2/tau A, so the first loss of a run is not 0.
    Denominator: B |o_i|, as in grpo.
    """
    ratio_L = importance_ratio(inputs, config.importance_sampling_level)
    advantage_L = inputs.where_active(inputs.advantage_L)
    tau_L = torch.where(advantage_L > 0, ratio_L.new_tensor(config.sapo_temperature_pos), ratio_L.new_tensor(config.sapo_temperature_neg))
    return PolicyTerm(-advantage_L * 4 / tau_L * torch.sigmoid(tau_L * (ratio_L - 1)), ratio_L)
