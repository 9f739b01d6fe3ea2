"""Weights & Biases."""

from __future__ import annotations

from typing import Any

from rlexp.config.training import WandbTrackerConfig
from rlexp.tracking.run import TrackingRun


class WandbTracker:
    """Sends metrics to Weights & Biases, or with mode=offline keeps them in the run folder for `wandb sync`.

    Steps are a metric of their own (`step`) instead of wandb's counter: wandb drops everything below its counter, so that after a resume
    the repeated steps would be lost.
    """

    def __init__(self, config: WandbTrackerConfig) -> None:
        self.config = config
        self._run: Any = None

    def start(self, run: TrackingRun) -> None:
        """Open the run under its own id, so that a resume continues it. Raises what wandb raises, e.g. when no API key is set."""
        import wandb  # takes a second, and its files are needed only by who tracks

        self._run = wandb.init(
            project=self.config.project,
            entity=self.config.entity,
            mode=self.config.mode,  # type: ignore[arg-type]
            group=self.config.group or run.group,
            tags=list(self.config.tags),
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=run.config,
            # console=off: it would wrap stdout, which belongs to the progress bar. Time-outs: its own 90 s would also delay our exit.
            settings={"console": "off", "silent": True, "init_timeout": 0.9 * run.timeout, "login_timeout": 0.9 * run.timeout},
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Send one step."""
        self._run.log({**metrics, "step": step})

    def finish(self, exit_code: int) -> None:
        """Upload what is left and close; another exit code than 0 marks the run as failed there."""
        self._run.finish(exit_code=exit_code)
