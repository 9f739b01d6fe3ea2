"""Dr. GRPO: the sum over tokens divided by a constant."""

from __future__ import annotations

from rlexp.config.algorithm import DrGRPOLossConfig
from rlexp.losses.clipped import clipped_term
from rlexp.losses.inputs import LossInputs, PolicyTerm


def dr_grpo(inputs: LossInputs, config: DrGRPOLossConfig) -> PolicyTerm:
    """Dr. GRPO (arXiv 2503.20783, section 3.2): 1/(B L_max) sum_i sum_t of the clipped term.

    Denominator: B rollouts of the step times rollout.max_completion_length. As it does not depend on what was sampled, no
    length is preferred. The paper also leaves out the division by the std: algorithm.scale_rewards=none.
    """
    return clipped_term(inputs, config)
