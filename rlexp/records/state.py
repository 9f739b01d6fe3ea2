"""What rewards may know of the progress of training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainerState:
    """Given to rewards as `trainer_state`, e.g. for curricula."""

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0
    training: bool = True
    """False in evaluation"""
