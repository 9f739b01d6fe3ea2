"""The run folder: the identity of a run, and the files in it."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlexp.launch.files import read_json, write_json, write_text
from rlexp.records.sweep import stop_mark

RUNNING, FINISHED, FAILED, PREEMPTED, PAUSED, STOPPED = "running", "finished", "failed", "preempted", "paused", "stopped"
"""States in status.json. A run whose process was killed outright stays `running`; its pid tells. A sweep pauses a run, a user stops a job of a sweep."""


def now() -> str:
    """The time as status.json writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunFolder:
    """A run folder that exists. `rlexp.launch.opening.open_folder` finds or makes one; rank processes attach to it by its path.

    path: the folder. finished: whether there was nothing left to do when it was opened. fresh: whether this process began the run.
    """

    def __init__(self, path: Path, finished: bool = False, fresh: bool = False) -> None:
        self.path, self.finished, self.fresh = path, finished, fresh

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def sweep(self) -> str | None:
        """Name of the sweep this run is a job of."""
        return self.path.parent.name if os.environ.get("RLEXP_SWEEP_DIR") else None

    @property
    def stopped(self) -> bool:
        """Whether this run is a job of a sweep that the user stopped (`python -m rlexp.sweep DIR stop N`)."""
        return self.sweep is not None and stop_mark(self.path).exists()

    @property
    def config_path(self) -> Path:
        """The resolved, typed configuration."""
        return self.path / "config.yaml"

    @property
    def metrics_path(self) -> Path:
        """One JSON object per logged step."""
        return self.path / "metrics.jsonl"

    @property
    def log_path(self) -> Path:
        """What the run said."""
        return self.path / "train.log"

    @property
    def ranks_path(self) -> Path:
        """Output and errors of the rank processes."""
        return self.path / "ranks"

    @property
    def checkpoints_path(self) -> Path:
        """Checkpoints."""
        return self.path / "checkpoints"

    @property
    def latest_checkpoint(self) -> Path | None:
        """The checkpoint a run continues from, None when it begins."""
        steps = {int(path.name[5:]): path for path in self.checkpoints_path.glob("step_*") if path.name[5:].isdigit()}
        return steps[max(steps)] if steps else None

    @property
    def saved_step(self) -> int | None:
        """The step of that checkpoint."""
        checkpoint = self.latest_checkpoint
        return None if checkpoint is None else int(checkpoint.name[5:])

    def status(self) -> dict[str, Any]:
        """What status.json says; {} before it exists."""
        return read_json(self.path / "status.json") or {}

    def write_status(self, state: str | None = None, **fields: Any) -> None:
        """Change status.json: the status (None: as it is) and further fields; the others stay. A field set to None is taken out."""
        status = self.status()
        status.update(fields)
        if state is not None:
            status["status"] = state
        write_json(self.path / "status.json", {key: value for key, value in status.items() if value is not None})

    def record_threads(self, threads: int) -> str | None:
        """Keep the number of CPU threads. Returns a warning when an earlier life of the run had another number, which changes the last bits."""
        before = self.status().get("threads")
        self.write_status(threads=threads)
        if before in (None, threads):
            return None
        return f"the run began with {before} CPU threads and goes on with {threads}: sums may differ in the last bits (set trainer.threads={before})"

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        write_json(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        """What summary.json says."""
        return read_json(self.path / "summary.json")

    def truncate_metrics(self, offset: int, step: int) -> str | None:
        """Cut metrics.jsonl back to what a checkpoint saw (0: a start from the beginning), so that every step stands there once.

        offset: its length then. step: of the checkpoint. Returns a warning when the file was changed since, so that this is no place to cut:
        complete lines of steps up to that one stay.
        """
        data = self.metrics_path.read_bytes() if self.metrics_path.exists() else b""
        if len(data) >= offset and data[:offset][-1:] in (b"", b"\n"):
            if len(data) > offset:
                with open(self.metrics_path, "r+b") as file:
                    file.truncate(offset)
                    os.fsync(file.fileno())
            return None
        write_text(self.metrics_path, "".join(f"{line}\n" for line in data.decode(errors="replace").split("\n")[:-1] if _step_of(line) <= step))
        return f"{self.metrics_path} was changed since step {step} was saved: of its lines, those of steps up to {step} are kept"

    def load(self, key: str) -> Any:
        """A small value that outlives the process, e.g. ids of trackers; None when it was never stored."""
        return (read_json(self.path / "state.json") or {}).get(key)

    def store(self, key: str, value: Any) -> None:
        """Keep a small value (JSON) in the folder."""
        write_json(self.path / "state.json", {**(read_json(self.path / "state.json") or {}), key: value})

    @property
    def unused(self) -> bool:
        """Whether this process began the run and nothing came of it yet: no metrics, no checkpoint."""
        return self.fresh and not self.metrics_path.exists() and self.latest_checkpoint is None

    def tidy(self) -> None:
        """Remove what a life that was killed left half written. Call it with the folder's lock."""
        half = [*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp"), *self.checkpoints_path.glob(".writing-*"), *self.path.glob("model.tmp")]
        for path in half:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path)

    def move_away(self) -> Path:
        """Rename the folder to NAME.old-1 (-2, …). Returns where it is now."""
        number = 1
        while (target := self.path.with_name(f"{self.name}.old-{number}")).exists():
            number += 1
        os.rename(self.path, target)
        return target


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; infinity for what is no such line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("inf")


def outputs_root() -> Path:
    """Where run folders live: RLEXP_OUTPUTS, else ./outputs."""
    return Path(os.environ.get("RLEXP_OUTPUTS") or "outputs").absolute()
