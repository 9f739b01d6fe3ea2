"""The function, imported when a run is built."""

from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.losses.ratio import importance_ratio
from rlx_extra import MineConfig


def mine(inputs: LossInputs, config: MineConfig) -> PolicyTerm:
    """-ratio A + pull (ratio - 1)^2 for each term."""
    ratio_L = importance_ratio(inputs, "token")
    advantage_L = inputs.where_active(inputs.advantage_L)
    return PolicyTerm(-ratio_L * advantage_L + config.pull * (ratio_L - 1) ** 2, ratio_L)
