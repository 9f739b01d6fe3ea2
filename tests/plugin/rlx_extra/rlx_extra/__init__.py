"""A loss of a third party: importing this names it, its dataclass and where its function is. No torch here."""

from dataclasses import dataclass
from typing import ClassVar

from rlexp.config.algorithm import LossConfig
from rlexp.config.fields import option
from rlexp.registry import LOSSES


@dataclass
class MineConfig(LossConfig):
    """Policy gradient with a quadratic pull of the ratio towards 1."""

    reduction: ClassVar[str] = "tokens"
    name: str = "mine"
    pull: float = option(0.5, "Weight of (ratio - 1)^2", ge=0)


LOSSES.register("mine", MineConfig, "rlx_extra.loss:mine")
