"""Tables of docs/results.md that compare settings over seeds: the sweeps behind them, and how they are rendered.

    python scripts/result_tables.py objectives            run (or finish) the sweeps, write docs/data/objectives/table.json and the page
    python scripts/result_tables.py objectives --smoke    one seed, few steps, nothing written: does every job run?

The sweeps are ordinary ones (`python -m rlexp.train -m ...`), two jobs side by side with one thread each, so a second start continues
where the first one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SEEDS = "run.seed=1,2,3"


@dataclass(frozen=True)
class Table:
    """Sweeps whose runs are compared: name -> overrides, the swept one first."""

    name: str
    title: str
    about: str
    sweeps: dict[str, tuple[str, ...]]
    least_gain: float = 0.15
    """in held-out accuracy; a row below needs a reason in `reasons`"""
    reasons: dict[str, str] = field(default_factory=dict)
    """row -> why it gains less"""
    compares: str = "objective"
    """what the rows are: objective or sampler"""


_BASE = ("experiment=addition", SEEDS, "evaluation.steps=1000", "checkpoint=none", "tracker=none", "trainer.threads=1", "sweep.jobs=2")
TABLES = {
    "objectives": Table(
        "objectives",
        "Objectives compared",
        "Every loss under GRPO, with two passes over each batch so that ratios leave 1, and every other algorithm of rewards with its own loss and one pass; "
        "from the same tiny model on the same tasks, each with the options its paper or row states and nothing tuned. Held-out accuracy before and after 60 "
        "steps of 16 prompts, mean of three seeds (smallest to largest). It shows that each objective learns, not which one is best: the task is small, and "
        "the learning rate is the one that was chosen for GRPO with dapo.",
        {
            "objectives-losses": ("loss=glob(*,exclude=rloo)", "algorithm.num_iterations=2", *_BASE),
            "objectives-algorithms": ("algorithm=glob(*,exclude=[grpo,sdpo])", *_BASE),
        },
    ),
    "vllm": Table(
        "vllm",
        "Samplers compared",
        "The default task with three samplers: rlexp's own, vLLM in the trainer's process, and a vLLM server that the run starts. rlexp's and vLLM's random "
        "draws differ, so the numbers agree within noise and not more; both of vLLM sample the same. Seconds are without the start, of two runs at a time on a "
        "CPU of two cores that had other work too.",
        {
            "vllm-samplers": ("generation=native,vllm", *_BASE),
            "vllm-servers": ("generation=vllm_server", "generation.launch=true", *_BASE),
        },
        compares="sampler",
    ),
}


@dataclass
class Row:
    """One setting over its seeds."""

    label: str
    start: list[float]
    end: list[float]
    steps: int
    seconds: list[float]
    reason: str = ""

    @property
    def gain(self) -> float:
        """Mean gain in held-out accuracy."""
        return statistics.mean(self.end) - statistics.mean(self.start)


def run_sweeps(table: Table, extra: list[str]) -> None:
    """Start each sweep; jobs that are finished are skipped by the launcher. Raises CalledProcessError when a job failed."""
    for name, overrides in table.sweeps.items():
        command = [sys.executable, "-m", "rlexp.train", "-m", *overrides, f"sweep.name={name}", *extra]
        print("$", " ".join(command[1:]), flush=True)
        subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def label_of(job: Path, compares: str) -> str:
    """`grpo + sapo` from the choices a job was started with, or the name of its sampler."""
    overrides = dict(line.split("=", 1) for line in (job / "overrides.txt").read_text(encoding="utf-8").splitlines() if "=" in line)
    config: dict[str, Any] = yaml.safe_load((job / "config.yaml").read_text(encoding="utf-8"))
    if compares == "sampler":
        return str(config["generation"]["name"])
    return f"{config['algorithm']['name']} + {overrides.get('loss', config['loss']['name'])}"


def collect(table: Table, outputs: Path) -> list[Row]:
    """Rows from the summaries of all jobs, best first."""
    rows: dict[str, Row] = {}
    for sweep in table.sweeps:
        for path in sorted((outputs / "sweeps" / sweep).glob("*/summary.json")):
            summary = json.loads(path.read_text(encoding="utf-8"))
            row = rows.setdefault(label_of(path.parent, table.compares), Row("", [], [], summary["steps"], []))
            row.start.append(summary["evaluation"]["start"]["accuracy"])
            row.end.append(summary["evaluation"]["end"]["accuracy"])
            row.seconds.append(round(summary["seconds"], 1))
    for label, row in rows.items():
        row.label, row.reason = label, table.reasons.get(label, "")
    return sorted(rows.values(), key=lambda row: (-statistics.mean(row.end), row.label))


def render(data: dict[str, Any]) -> list[str]:
    """The part of docs/results.md about one table.json."""

    def spread(values: list[float]) -> str:
        return f"{statistics.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"

    lines = [f"## {data['title']}", "", data["about"], "", "```shell no-run: takes a quarter of an hour and more"]
    lines += [*(f"$ {command}" for command in data["commands"]), "```", ""]
    lines.append(f"| {data.get('compares', 'objective')} | seeds | accuracy before | accuracy after | gain | steps | seconds a run | |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for entry in data["rows"]:
        row = Row(**entry)
        before, seconds = f"{statistics.mean(row.start):.3f}", f"{statistics.median(row.seconds):.0f}"
        cells = [row.label, str(len(row.end)), before, spread(row.end), f"{row.gain:+.3f}", str(row.steps), seconds]
        lines.append(f"| {' | '.join(cells)} | {row.reason} |")
    return [*lines, ""]


def problems(data: dict[str, Any]) -> list[str]:
    """Rows that gain too little without a reason, or lack a seed."""
    rows = [Row(**entry) for entry in data["rows"]]
    found = [f"{data['name']}: {row.label} gains {row.gain:.3f} < {data['least_gain']}" for row in rows if row.gain < data["least_gain"] and not row.reason]
    return found + [f"{data['name']}: {row.label} has {len(row.end)} seeds" for row in rows if len(row.end) != data["seeds"]]


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--smoke", action="store_true", help="one seed and two steps of each job, nothing written")
    arguments = parser.parse_args()
    table = TABLES[arguments.table]
    if arguments.smoke:
        run_sweeps(table, ["run.seed=1", "trainer.max_steps=2", "data.eval_size=8", f"sweep.name=smoke-{table.name}"])
        return
    run_sweeps(table, [])
    outputs = Path(os.environ.get("RLEXP_OUTPUTS", ROOT / "outputs"))
    data = {
        "name": table.name,
        "title": table.title,
        "about": table.about,
        "compares": table.compares,
        "commands": [f"python -m rlexp.train -m '{overrides[0]}' {' '.join(overrides[1:])}" for overrides in table.sweeps.values()],
        "least_gain": table.least_gain,
        "seeds": len(SEEDS.split(",")),
        "rows": [asdict(row) for row in collect(table, outputs)],
    }
    target = ROOT / "docs" / "data" / table.name / "table.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "scripts" / "results.py")], check=True)
    print(*problems(data), sep="\n")


if __name__ == "__main__":
    main()
