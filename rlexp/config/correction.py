"""Group `correction`: importance weights for a sampler whose probabilities differ from the trainer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from rlexp.config.fields import option

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


@dataclass
class CorrectionConfig:
    """The policy term is weighted by trainer / sampler probability before the update; costs a scoring pass over each generation batch."""

    name: str = option(
        "auto",
        "none; one of the modes: the weight of each token or the product over a rollout's, clamped to the bounds (truncate) or zero outside them (mask); "
        "auto: sequence_mask (token_truncate for loss=vespo) when a sampler with numerics of its own (vLLM) samples for any loss but rloo's, else none",
        choices=("auto", "none", *MODES),
    )
    clip_min: Optional[float] = option(None, "Lower bound of the weight; null: none", ge=0)
    clip_max: Optional[float] = option(3.0, "Upper bound of the weight; null: none", gt=0)
    normalize: bool = option(
        False, "In the sequence modes, the geometric mean of the tokens' weights instead of their product, which leaves any bounds as texts get long"
    )
