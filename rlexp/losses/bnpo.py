"""BNPO: the mean over the tokens of each micro-batch."""

from __future__ import annotations

from rlexp.config.algorithm import BNPOLossConfig
from rlexp.losses.clipped import clipped_term
from rlexp.losses.inputs import LossInputs, PolicyTerm


def bnpo(inputs: LossInputs, config: BNPOLossConfig) -> PolicyTerm:
    """Token mean per batch as forwarded (the form TRL calls bnpo): the mean over micro-batches of sum_(i,t) / (their tokens).

    Denominator: the active tokens of the micro-batch times the number of micro-batches of the step on all ranks, so the result
    depends on how a step is split: with one rollout per micro-batch it equals grpo, with a single one dapo. That is its definition; it
    is the exception to "a step does not depend on its split".
    """
    return clipped_term(inputs, config)
