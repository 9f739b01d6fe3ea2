"""LUSPO: GSPO with each rollout weighted by its length."""

from __future__ import annotations

from rlexp.config.losses import LUSPOLossConfig
from rlexp.losses.clipped import clipped_term
from rlexp.losses.inputs import LossInputs, PolicyTerm


def luspo(inputs: LossInputs, config: LUSPOLossConfig) -> PolicyTerm:
    """Length-unbiased sequence policy optimisation (arXiv 2602.05261): 1/B sum_i |o_i| of the clipped term of the sequence ratio.

    Denominator: B rollouts of the step. The sequence ratio's gradient is a mean over the rollout's tokens; multiplied by |o_i| it
    is a sum, so that each token weighs the same however long its rollout is, which GSPO's does not. Needs the sequence ratio.
    """
    return clipped_term(inputs, config)
