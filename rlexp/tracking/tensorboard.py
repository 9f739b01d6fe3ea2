"""TensorBoard event files in the run folder: `tensorboard --logdir outputs`."""

from __future__ import annotations

import json
from typing import Any

from rlexp.config.training import TensorboardTrackerConfig
from rlexp.tracking.run import TrackingRun


class TensorboardTracker:
    """Writes event files to <run folder>/tensorboard."""

    def __init__(self, config: TensorboardTrackerConfig) -> None:
        self.config = config
        self._writer: Any = None

    def start(self, run: TrackingRun) -> None:
        """Open the event file; events that an earlier life of the run wrote after the step it resumes from are hidden."""
        from torch.utils.tensorboard import SummaryWriter  # imports torch

        self._writer = SummaryWriter(log_dir=str(run.folder / "tensorboard"), purge_step=run.step + 1 if run.step else None)
        if not run.step:
            self._writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2, default=str)}\n```", 0)

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Write one step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, exit_code: int) -> None:
        """Close the file."""
        self._writer.close()
