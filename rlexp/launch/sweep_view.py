"""What a sweep shows while its jobs run: one line for each running job in a terminal, else a line when a job begins or ends."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlexp.launch.folder import FAILED, FINISHED, RunFolder
from rlexp.launch.jobs import SKIPPED, Job, Result

TAIL_BYTES = 16384


class SweepView:
    """Shows jobs. count: how many there are. Use as a context."""

    def __init__(self, count: int, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._count, self._begun, self._ended, self._failed = count, 0, 0, 0
        self._running: dict[str, tuple[Job, float]] = {}
        self._live = Live(console=self._console, transient=True, auto_refresh=False) if self._console.is_terminal else None
        self._refreshed = 0.0

    def __enter__(self) -> SweepView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()

    def started(self, job: Job) -> None:
        """A job begins."""
        self._begun += 1
        self._running[job.name] = (job, time.monotonic())
        if not self._live:
            self._print(f"[{self._begun}/{self._count}] started job {job.number}: {job.label}")

    def ended(self, result: Result) -> None:
        """A job is over."""
        self._running.pop(result.job.name, None)
        self._ended += 1
        self._failed += result.state == FAILED
        reason = f": {result.reason.splitlines()[0]}" if result.reason else ""
        self._print(f"[{self._ended}/{self._count} done] job {result.job.number} {result.state}: {result.job.label} ({result.seconds:.0f} s){reason}")

    def refresh(self) -> None:
        """Draw the running jobs anew, at most twice a second."""
        if self._live is None or time.monotonic() - self._refreshed < 0.5:
            return
        self._refreshed = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        head = f"{self._ended} of {self._count} jobs done{failed}, {len(self._running)} running"
        lines = [
            head,
            *(f"  job {job.number}: {job.label}  {progress_of(job.folder)}  {time.monotonic() - since:.0f} s" for job, since in self._running.values()),
        ]
        self._live.update(Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines)), refresh=True)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)


def totals_text(results: Sequence[Result]) -> str:
    """The last line of a sweep: `6 finished, 0 failed`, and what else became of jobs. Those that were finished before count too."""
    states = Counter(FINISHED if result.state == SKIPPED else result.state for result in results)
    others = [f"{count} {state}" for state, count in sorted(states.items()) if state not in (FINISHED, FAILED)]
    return ", ".join([f"{states[FINISHED]} finished", f"{states[FAILED]} failed", *others])


def progress_of(folder: Path) -> str:
    """Where a run is, from the end of its metrics.jsonl: `step 12  reward 0.41  accuracy 0.38`."""
    path = RunFolder(folder).metrics_path
    if not path.is_file():
        return "starting"
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = [json.loads(line) for line in file.read().split(b"\n")[:-1] if line.startswith(b"{") and line.endswith(b"}")]
    if not lines:
        return "starting"
    known: dict[str, float] = {}
    for line in lines:
        known.update({name: line[name] for name in ("reward", "accuracy") if line.get(name) is not None})
    return "  ".join([f"step {lines[-1]['step']}", *(f"{name} {known[name]:.3g}" for name in ("reward", "accuracy") if name in known)])
