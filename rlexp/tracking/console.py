"""What a person sees while a run goes on: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rlexp.records.rollout import Rollout

LONGEST_TEXT = 300
"""Characters of a prompt or completion shown on the console"""


class ConsoleLog:
    """Progress of training: step, ETA, reward, length, entropy, tokens per second, and the last accuracy.

    total_steps: steps of the run. step: where it starts or resumes. console: rich's, by default of stdout; whether it is a terminal decides
    between the bar and plain lines.
    """

    def __init__(self, total_steps: int, step: int = 0, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._total, self._first = total_steps, step
        self._started = time.monotonic()
        self._accuracy: float | None = None
        self._bar: Progress | None = None
        if self.console.is_terminal:
            columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeRemainingColumn(), TextColumn("{task.fields[numbers]}"))
            self._bar = Progress(*columns, console=self.console, transient=True, refresh_per_second=4)
            self._task = self._bar.add_task("train", total=total_steps, completed=step, numbers="")
            self._bar.start()

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a step, or the result of an evaluation."""
        if split != "train":
            self._accuracy = metrics.get("accuracy", self._accuracy)
            self.console.print(f"step {step}: {split} " + "  ".join(_short(name, value) for name, value in metrics.items() if _shown(name)))
            return
        numbers = "  ".join(self._numbers(metrics))
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=numbers)
        else:
            self.console.print(f"step {step}/{self._total}  {numbers}  eta {self._eta(step)}")

    def completions(self, step: int, rollouts: Sequence[Rollout], count: int) -> None:
        """A table of the first `count` rollouts: prompt, completion, reward, advantage."""
        table = Table(title=f"step {step}", show_lines=True, expand=True)
        for name, share in (("prompt", 3), ("completion", 5)):
            table.add_column(name, ratio=share, overflow="fold")
        for name in ("reward", "advantage"):
            table.add_column(name, justify="right")
        for rollout in rollouts[:count]:
            # Text, not str: what a model wrote must not be read as console markup
            texts = [Text(_cut(text)) for text in (rollout.prompt_text, rollout.completion_text)]
            table.add_row(*texts, f"{rollout.reward:.3f}", f"{rollout.advantage:+.3f}")
        self.console.print(table)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def closing(self, summary: Mapping[str, Any], folder: Path) -> None:
        """The last lines of a run: what was learnt, where it is, what to try next."""
        self.close()
        for line in closing_lines(summary, folder):
            self.console.print(line, markup=False)

    def _numbers(self, metrics: Mapping[str, float]) -> list[str]:
        shown = [("reward", "reward"), ("loss", "loss"), ("completions/mean_length", "length"), ("entropy", "entropy"), ("perf/tokens_per_s", "tokens/s")]
        parts = [_short(label, metrics[name]) for name, label in shown if metrics.get(name) is not None]
        if self._accuracy is not None:
            parts.append(_short("accuracy", self._accuracy))
        return parts

    def _eta(self, step: int) -> str:
        done = step - self._first
        if done <= 0:
            return "?"
        return duration((time.monotonic() - self._started) / done * (self._total - step))


def closing_lines(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """The last lines of a run, from its summary.json {status, steps, seconds, evaluation: {start, end, best}}."""
    evaluation = summary.get("evaluation") or {}
    start, end = evaluation.get("start", {}).get("accuracy"), evaluation.get("end", {}).get("accuracy")
    lines = [f"{summary.get('status', 'ended')} after {summary.get('steps', 0)} steps in {duration(summary.get('seconds', 0.0))}"]
    if start is not None and end is not None:
        best = evaluation.get("best", {})
        note = f" (best {best['accuracy']:.3f} at step {best['step']:.0f})" if best.get("accuracy", end) > end else ""
        lines.append(f"held-out accuracy {start:.3f} -> {end:.3f}{note}")
    finished = summary.get("status") == "finished"
    lines.append(f"run folder {short(folder)} (report.html, metrics.jsonl, rollouts/, {'model/' if finished else 'checkpoints/'})")
    if finished:
        lines.append(f"next: try other tasks on it    python -m rlexp.evaluate run={short(folder)}")
        lines.append("      compare algorithms        python -m rlexp.train -m loss=dapo,dr_grpo run.seed=1,2")
        lines.append(f"      train it further          the same command with trainer.max_steps={2 * int(summary.get('steps', 0)) or 1}")
    else:
        lines.append("next: the same command continues it")
    return lines


def short(folder: Path) -> Path:
    """The path as seen from the working folder when it lies below it."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def duration(seconds: float) -> str:
    """Seconds as 42s, 3:20 or 1:02:03."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _short(name: str, value: float) -> str:
    if value is None or math.isnan(value):
        return f"{name} -"
    return f"{name} {value:.0f}" if abs(value) >= 100 else f"{name} {value:.3g}"


def _shown(name: str) -> bool:
    return name in ("accuracy", "reward", "completions/mean_length") or name.startswith("pass@")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … ({len(text)} characters)"
