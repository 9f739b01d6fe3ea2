"""The search with early stopping in docs/results.md: what successive halving finds of eight settings, beside the full grid, over seeds.

    python scripts/results_halving.py            run (or finish) the sweeps, write docs/data/halving/ and the page
    python scripts/results_halving.py --smoke    one seed, four steps, nothing written: does it run?

Both are ordinary sweeps, two jobs side by side with one thread each, so a second start continues where the first one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (1, 2, 3)
LOSSES, RATES = ("dapo", "grpo"), ("3e-5", "1e-4", "3e-4", "1e-3")
LEAST, MOST = 0.98, 0.5
"""share of the grid's best accuracy that is to be found, in at most that share of its steps"""
ABOUT = (
    "Four learning rates and two losses on the default task, 60 steps each, evaluated on 256 held-out sums every 10. `sweep=halving` trains all eight to step "
    "10, the best four to 20, the best two to 40 and the best one to 60; the full grid trains all to the end. One search for each of three seeds. The settings "
    "were chosen before any of these runs."
)


def overrides(seed: int, halving: bool) -> list[str]:
    """The command line of a sweep."""
    axes = [f"loss={','.join(LOSSES)}", f"optimizer.learning_rate={','.join(RATES)}", f"run.seed={seed}", "tracker=none", "trainer.threads=1", "sweep.jobs=2"]
    return [*(["sweep=halving"] if halving else []), "experiment=addition", *axes, f"sweep.name={name_of(seed, halving)}"]


def name_of(seed: int, halving: bool) -> str:
    """Folder of a sweep below outputs/sweeps/."""
    return f"halving-results-{'search' if halving else 'grid'}-{seed}"


def sweep(seed: int, halving: bool, extra: list[str]) -> str:
    """Run (or finish) a sweep. Returns its last line. Raises CalledProcessError when a job failed."""
    command = [sys.executable, "-m", "rlexp.train", "-m", *overrides(seed, halving), *extra]
    print("$", " ".join(command[1:]), flush=True)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    return done.stdout.splitlines()[-1]


def runs_of(folder: Path) -> dict[str, dict[str, Any]]:
    """`loss rate` -> steps trained and held-out accuracies by step, of each run of a sweep."""
    found = {}
    for name, job in json.loads((folder / "sweep.json").read_text(encoding="utf-8")).items():
        chosen = dict(override.split("=", 1) for override in job["overrides"])
        lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        accuracies = {line["step"]: line["accuracy"] for line in lines if line["split"] == "eval"}
        found[f"{chosen['loss']} {chosen['optimizer.learning_rate']}"] = {"steps": max(line["step"] for line in lines), "accuracies": accuracies}
    return found


def search_of(seed: int, outputs: Path, again: str) -> dict[str, Any]:
    """One search: every setting in the grid and in the search. again: what a second start said."""
    grid, searched = (runs_of(outputs / "sweeps" / name_of(seed, halving)) for halving in (False, True))
    settings = {
        label: {"grid": run["accuracies"][run["steps"]], "steps": searched[label]["steps"], "same": _begins(run["accuracies"], searched[label]["accuracies"])}
        for label, run in grid.items()
    }
    total = sum(run["steps"] for run in grid.values())
    found = max(settings, key=lambda label: settings[label]["steps"])
    accuracy = searched[found]["accuracies"][searched[found]["steps"]]
    return {"seed": seed, "settings": settings, "total": total, "found": found, "accuracy": accuracy, "again": again}


def _begins(whole: dict[int, float], part: dict[int, float]) -> bool:
    """Whether the accuracies of a run that ended early are those of the whole one, as far as they go."""
    return all(whole[step] == accuracy for step, accuracy in part.items())


def figures(search: dict[str, Any]) -> dict[str, float]:
    """best: the grid's best accuracy; share: of it, what was found; steps: trained; cost: share of the grid's steps."""
    best = max(setting["grid"] for setting in search["settings"].values())
    steps = sum(setting["steps"] for setting in search["settings"].values())
    return {"best": best, "share": search["accuracy"] / best, "steps": steps, "cost": steps / search["total"]}


def problems(data: dict[str, Any]) -> list[str]:
    """What was to be shown and is not."""
    found = []
    for search in data["searches"]:
        numbers, where = figures(search), f"halving, seed {search['seed']}"
        if numbers["share"] < LEAST:
            found.append(f"{where}: {search['accuracy']:.3f} is less than {LEAST:g} of the grid's best, {numbers['best']:.3f}")
        if numbers["cost"] > MOST:
            found.append(f"{where}: {numbers['steps']} steps are more than {MOST:g} of {search['total']}")
        if search["again"] != f"{len(search['settings'])} settled earlier, 0 run":
            found.append(f"{where}: the second start said {search['again']}")
        found += [f"{where}: {label} was not the same run in both sweeps" for label, setting in search["settings"].items() if not setting["same"]]
    return found


def render(data: dict[str, Any]) -> list[str]:
    """The part of docs/results.md about data/halving/searches.json."""
    lines = [
        "## Early stopping",
        "",
        data["about"],
        "",
        "```shell no-run: takes a few minutes for each seed",
        *(f"$ {line}" for line in data["commands"]),
        "```",
        "",
    ]
    lines += ["| seed | found | its accuracy | best of the grid | share of it | steps trained | of | second start |", "|---|---|---|---|---|---|---|---|"]
    for search in data["searches"]:
        numbers = figures(search)
        cells = [search["seed"], search["found"], f"{search['accuracy']:.3f}", f"{numbers['best']:.3f}", f"{numbers['share']:.3f}"]
        lines.append(f"| {' | '.join(map(str, [*cells, numbers['steps'], search['total'], search['again']]))} |")
    lines += ["", "Held-out accuracy after 60 steps in the full grid, and in parentheses the steps that the search gave the same setting:", ""]
    lines += ["| setting | " + " | ".join(f"seed {search['seed']}" for search in data["searches"]) + " |", "|---" * (1 + len(data["searches"])) + "|"]
    for label in data["searches"][0]["settings"]:
        settings = [search["settings"][label] for search in data["searches"]]
        lines.append(f"| {label} | " + " | ".join(f"{setting['grid']:.3f} ({setting['steps']})" for setting in settings) + " |")
    return [*lines, "", "As far as a run of the search went, its accuracies are exactly those of the same run in the grid.", ""]


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one seed and four steps of each run, nothing written")
    if parser.parse_args().smoke:
        small = ["trainer.max_steps=4", "evaluation.steps=1", "data.eval_size=8", "sweep.name=halving-smoke"]
        print([sweep(SEEDS[0], True, small) for _ in range(2)])
        return
    outputs = Path(os.environ.get("RLEXP_OUTPUTS", ROOT / "outputs"))
    searches = []
    for seed in SEEDS:
        sweep(seed, True, [])
        again = sweep(seed, True, [])
        sweep(seed, False, [])
        searches.append(search_of(seed, outputs, again))
    commands = [f"python -m rlexp.train -m {' '.join(overrides(SEEDS[0], halving))}" for halving in (True, False)]
    folder = ROOT / "docs" / "data" / "halving"
    folder.mkdir(parents=True, exist_ok=True)
    data = {"about": ABOUT, "commands": commands, "searches": searches}
    (folder / "searches.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "scripts" / "results.py")], check=True)
    print(*problems(data), sep="\n")


if __name__ == "__main__":
    main()
