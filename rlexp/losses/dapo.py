"""DAPO: the mean over all tokens of the step."""

from __future__ import annotations

from rlexp.config.algorithm import DAPOLossConfig
from rlexp.losses.clipped import clipped_term
from rlexp.losses.inputs import LossInputs, PolicyTerm


def dapo(inputs: LossInputs, config: DAPOLossConfig) -> PolicyTerm:
    """DAPO's token-level loss (arXiv 2503.14476, eq. 12): 1/N sum_i sum_t of the clipped term.

    Denominator: N, the active tokens of the whole step over all micro-batches and ranks, so that each token weighs the same
    and a step does not depend on how it is split. The paper uses epsilon_high = 0.28.
    """
    return clipped_term(inputs, config)
