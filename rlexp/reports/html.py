"""report.html: one page about a run that needs neither network nor scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rlexp.config.differences import differences
from rlexp.config.errors import UserError
from rlexp.config.saved import load_config
from rlexp.reports.rollout_samples import Shown, shown_rollouts
from rlexp.reports.run_view import RunView, read_run
from rlexp.reports.style import CSS
from rlexp.reports.svg import COLOURS, Line, chart, number

MAIN_CHARTS = (
    ("Loss", "loss"),
    ("Entropy", "entropy"),
    ("Gradient norm", "grad_norm"),
    ("KL to the reference", "kl"),
    ("Truncated completions", "completions/clipped_ratio"),
    ("Groups without signal", "frac_reward_zero_std"),
    ("Learning rate", "learning_rate"),
    ("Generated tokens per second", "perf/tokens_per_s"),
)
"""(title, metric) of the charts that stand open"""


def write_report(folder: Path) -> Path:
    """Write report.html of a run folder anew and return its path. Raises UserError when it is no run folder or cannot be written to."""
    target, text = folder / "report.html", page(read_run(folder))
    temporary = folder / f".report.{os.getpid()}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    return target


def page(run: RunView) -> str:
    """The whole page. Everything that comes from the run is escaped."""
    body = "\n".join([_head(run), _facts(run), _curves(run), _phases(run), _rollouts(run.path), _configuration(run), _made_with(run)])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)}</title><style>{CSS}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _head(run: RunView) -> str:
    state = run.state or "not started"
    reason = run.status.get("reason")
    note = f'<div class="reason">{escape(str(reason))}</div>' if reason else ""
    times = " – ".join(str(run.status[key]).replace("T", " ")[:19] for key in ("first_started", "ended") if run.status.get(key))
    return (
        f'<header><h1>{escape(run.name)}</h1><span class="badge {escape(state)}">{escape(state)}</span><span class="soft">{escape(times)}</span></header>{note}'
    )


def _facts(run: RunView) -> str:
    facts: list[tuple[str, str]] = []
    start, end, best = (run.evaluation(when) for when in ("start", "end", "best"))
    if start is not None and end is not None:
        facts.append((f"{start:.3f} → {end:.3f}", "held-out accuracy"))
        if best is not None and best > end:
            facts.append((f"{best:.3f}", "best held-out accuracy"))
    rewards = run.series("reward")
    if rewards:
        few = max(1, min(10, len(rewards) // 4))
        means = [sum(value for _, value in part) / len(part) for part in (rewards[:few], rewards[-few:])]
        facts.append((f"{means[0]:.3f} → {means[1]:.3f}", "reward in training"))
    facts.append((str(run.steps), "optimizer steps"))
    facts.append((_time(run.seconds), "training time"))
    facts += [(number(count), f"{key} tokens") for key, count in (run.summary.get("tokens") or {}).items()]
    return '<div class="facts">' + "".join(f'<div class="fact"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in facts) + "</div>"


def _curves(run: RunView) -> str:
    names = run.names()
    used: set[str] = set()

    def drawn(title: str, wanted: Sequence[str], labels: Sequence[str] | None = None) -> str:
        used.update(wanted)
        return chart(title, [Line(label, run.series(name)) for name, label in zip(wanted, labels or wanted, strict=True)])

    terms = [name for name in names if name.startswith("rewards/") and name.endswith("/mean")]
    figures = [chart("Held-out accuracy", [Line("accuracy", run.series("accuracy", "eval"), dots=True)]), drawn("Reward", ["reward"])]
    if len(terms) > 1:
        figures.append(drawn("Reward terms", terms, [name.removeprefix("rewards/").removesuffix("/mean") for name in terms]))
    passes = [name for name in run.names("eval") if name.startswith("pass@")]
    figures.append(chart("pass@k on held-out tasks", [Line(name, run.series(name, "eval"), dots=True) for name in passes]))
    lengths = ("mean_length", "min_length", "max_length")
    figures.append(drawn("Completion length", [f"completions/{name}" for name in lengths], [name.removesuffix("_length") for name in lengths]))
    clips = ("region", "low", "high")
    figures += [drawn(title, [name]) for title, name in MAIN_CHARTS]
    figures.append(drawn("Clipped share of tokens", [f"clip_ratio/{name}_mean" for name in clips], clips))
    rest = "".join(chart(name, [Line(name, run.series(name))]) for name in names if name not in used)
    if not any(figures) and not rest:
        return '<h2>Curves</h2><p class="note">No step has been logged.</p>'
    more = f'<details><summary>All other metrics</summary><div class="charts">{rest}</div></details>' if rest else ""
    note = "Over optimizer steps; the number at the right is the last value. Long curves are drawn faint, with a moving average on top."
    return f'<h2>Curves</h2><p class="note">{note}</p><div class="charts">{"".join(figures)}</div>{more}'


def phase_seconds(run: RunView) -> dict[str, float]:
    """Phase -> seconds over the whole run, from metrics named perf/<phase>_s, longest first."""
    phases: dict[str, float] = {}
    for line in run.metrics:
        for name, value in line.items():
            if name.startswith("perf/") and name.endswith("_s") and not name.endswith("_per_s") and value is not None:
                phase = name.removeprefix("perf/").removesuffix("_s")
                phases[phase] = phases.get(phase, 0.0) + value
    return dict(sorted(phases.items(), key=lambda item: -item[1]))


def _phases(run: RunView) -> str:
    phases = phase_seconds(run)
    total = sum(phases.values())
    if total <= 0:
        return ""
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(phases))]
    bar = "".join(
        f'<div style="width:{100 * seconds / total:.2f}%;background:{colour}"></div>' for seconds, colour in zip(phases.values(), colours, strict=True)
    )
    rows = "".join(
        f'<tr><td><span style="color:{colour}">●</span> {escape(name)}</td>'
        f'<td class="number">{seconds:.1f} s</td><td class="number">{100 * seconds / total:.1f} %</td></tr>'
        for (name, seconds), colour in zip(phases.items(), colours, strict=True)
    )
    return f'<h2>Where the time went</h2><div class="box"><div class="bar">{bar}</div><table>{rows}</table></div>'


def _rollouts(folder: Path) -> str:
    parts = []
    for title, rows in shown_rollouts(folder):
        lines = "".join(_rollout(row) for row in rows)
        numbers = "".join(f'<th class="number">{name}</th>' for name in ("tokens", "reward", "advantage"))
        head = f"<thead><tr><th>prompt</th><th>completion</th>{numbers}</tr></thead>"
        parts.append(f'<p class="note">{escape(title)}</p><div class="box"><table>{head}{lines}</table></div>')
    return "<h2>Rollouts</h2>" + ("".join(parts) or '<p class="note">None were written.</p>')


def _rollout(row: Shown) -> str:
    colour = "" if row.advantage is None or row.advantage == 0 else " good" if row.advantage > 0 else " bad"
    cut = ' <span class="bad" title="cut off by the token limit">(cut off)</span>' if row.cut_off else ""
    advantage = "–" if row.advantage is None else f"{row.advantage:+.3f}"
    reward = "–" if row.reward is None else f"{row.reward:.3f}"
    return (
        f'<tr><td class="text">{escape(row.prompt)}</td><td class="text">{escape(row.completion)}{cut}</td><td class="number">{row.tokens}</td>'
        f'<td class="number">{reward}</td><td class="number{colour}">{advantage}</td></tr>'
    )


def _configuration(run: RunView) -> str:
    overrides = " ".join(run.overrides) or "none"
    try:
        rows = differences(load_config(run.path / "config.yaml"))
        table = "".join(
            f"<tr><td><code>{escape(key)}</code></td><td><code>{_value(value)}</code></td><td class='soft'><code>{_value(default)}</code></td></tr>"
            for key, value, default in rows
        )
        shown = f'<div class="box"><table><thead><tr><th>key</th><th>value</th><th>default</th></tr></thead>{table}</table></div>'
    except UserError as error:
        shown = f'<div class="reason">{escape(str(error))}</div>'
    return f'<h2>Configuration</h2><p class="note">What differs from the defaults. Command line: <code>{escape(overrides)}</code></p>{shown}'


def _made_with(run: RunView) -> str:
    status = run.status
    versions = " · ".join(f"{name} {version}" for name, version in (status.get("versions") or {}).items())
    facts = [("host", status.get("host")), ("processes", status.get("processes")), ("CPU threads", status.get("threads")), ("commit", status.get("git_commit"))]
    rest = " · ".join(f"{name} {value}" for name, value in facts if value is not None)
    return f'<h2>Made with</h2><p class="note">{escape(versions)}<br>{escape(rest)}</p>'


def _value(value: Any) -> str:
    return escape(value if isinstance(value, str) else json.dumps(value, default=str))


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
