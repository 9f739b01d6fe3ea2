"""GRPO: the mean over rollouts of the mean over their tokens."""

from __future__ import annotations

from rlexp.config.algorithm import GRPOLossConfig
from rlexp.losses.clipped import clipped_term
from rlexp.losses.inputs import LossInputs, PolicyTerm


def grpo(inputs: LossInputs, config: GRPOLossConfig) -> PolicyTerm:
    """DeepSeekMath (arXiv 2402.03300, eq. 3): sum_i 1/(B |o_i|) sum_t of the clipped term.

    Denominator: B rollouts of the step (one without tokens counts, as 0) times the rollout's own length, so that each rollout
    weighs the same. That favours short answers with positive and long ones with negative advantage; dapo and dr_grpo do not.
    With importance_sampling_level=sequence this is GSPO (arXiv 2507.18071, eq. 5).
    """
    return clipped_term(inputs, config)
