"""Write docs/results.md and its curves from the runs under docs/data/; every number on that page comes from here.

    python scripts/results.py                     write the page and the curves
    python scripts/results.py --check             exit 1 if the page is out of date or a claim does not hold
    python scripts/results.py --add outputs/NAME --name NAME --about TEXT --claim "reward_gain >= 0.15" --ask "What is 3 + 4?"

A result is a folder docs/data/NAME with the run's metrics.jsonl, summary.json, config.yaml and status.json, and result.json: the
command, what was to be shown, and what the saved model answered.
"""

from __future__ import annotations

import argparse
import difflib
import json
import operator
import re
import shlex
import statistics
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from result_tables import problems as table_problems
from result_tables import render as render_table
from results_halving import problems as halving_problems
from results_halving import render as render_halving
from results_sdpo import render as render_sdpo

DOCS = Path(__file__).resolve().parent.parent / "docs"
FILES = ("metrics.jsonl", "summary.json", "config.yaml", "status.json")
PRIVATE = ("host", "pid")
"""keys of status.json that say something about the machine and nothing about the result"""
WINDOW = 5
"""steps at the beginning and at the end that are compared"""
COMPARE = {">=": operator.ge, "<=": operator.le}

FIGURES = {
    "steps": "optimizer steps",
    "minutes": "minutes from start to end, everything included",
    "training_minutes": "minutes of generation, training and evaluation",
    "step_seconds": "seconds of a step, median",
    "reward_first": f"mean reward, first {WINDOW} steps",
    "reward_last": f"mean reward, last {WINDOW} steps",
    "reward_gain": "gain in mean reward",
    "accuracy_start": "held-out accuracy before training",
    "accuracy_end": "held-out accuracy after training",
    "generated": "tokens generated",
    "forwarded": "tokens forwarded in training",
    "trained": "tokens trained on",
}
"""name in a claim -> what the page calls it"""


@dataclass
class Result:
    """One folder under docs/data/."""

    folder: Path

    def __post_init__(self) -> None:
        self.name = self.folder.name
        self.summary, self.status, self.about = (json.loads(self.text(name)) for name in ("summary.json", "status.json", "result.json"))
        self.config = yaml.safe_load(self.text("config.yaml"))
        self.lines = [json.loads(line) for line in self.text("metrics.jsonl").splitlines()]

    def text(self, name: str) -> str:
        """Contents of one of its files."""
        return (self.folder / name).read_text(encoding="utf-8")

    def curve(self, metric: str, split: str = "train") -> list[tuple[int, float]]:
        """(step, value) wherever the metric was logged."""
        return [(line["step"], line[metric]) for line in self.lines if line["split"] == split and line.get(metric) is not None]

    def figures(self) -> dict[str, float]:
        """All numbers of FIGURES that the run has."""
        rewards = [value for _, value in self.curve("reward")]
        accuracies = [value for _, value in self.curve("accuracy", "eval")]
        began, ended = (datetime.fromisoformat(self.status[key]) for key in ("first_started", "ended"))
        found = {
            "steps": self.summary["steps"],
            "minutes": (ended - began).total_seconds() / 60,
            "training_minutes": self.summary["seconds"] / 60,
            "step_seconds": statistics.median(value for _, value in self.curve("step_time")),
            "reward_first": sum(rewards[:WINDOW]) / WINDOW,
            "reward_last": sum(rewards[-WINDOW:]) / WINDOW,
            **self.summary["tokens"],
        }
        found["reward_gain"] = found["reward_last"] - found["reward_first"]
        if accuracies:
            found |= {"accuracy_start": accuracies[0], "accuracy_end": accuracies[-1]}
        return {name: found[name] for name in FIGURES if name in found}

    def claims(self) -> list[tuple[str, float, bool]]:
        """(claim, the number found, whether it holds)."""
        figures = self.figures()
        return [(claim, figures[name], COMPARE[sign](figures[name], limit)) for claim in self.about["claims"] for name, sign, limit in [parse_claim(claim)]]


def parse_claim(claim: str) -> tuple[str, str, float]:
    """`reward_gain >= 0.15` as its three parts; raises ValueError for anything else."""
    found = re.fullmatch(rf"({'|'.join(FIGURES)}) (>=|<=) ([0-9.]+)", claim)
    if not found:
        raise ValueError(f"a claim is FIGURE >= NUMBER or FIGURE <= NUMBER with a figure of {', '.join(FIGURES)}, not {claim!r}")
    return found[1], found[2], float(found[3])


def number(value: float) -> str:
    """1,234 for a count, otherwise three decimals below 2 and one above."""
    return f"{value:.3f}" if abs(value) < 2 else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def section(result: Result) -> list[str]:
    """The part of the page about one result."""
    figures, about, link = result.figures(), result.about, f"data/{result.name}"
    lines = [f"## {result.name}", "", about["about"], "", f"```shell no-run: takes {figures['minutes']:.0f} minutes", f"$ {about['command']}", "```", ""]
    lines += [f"![Reward and accuracy of {result.name} by step]({link}/curve.png)", "", "| figure | value |", "|---|---|"]
    lines += [f"| {FIGURES[name]} | {number(value)} |" for name, value in figures.items()]
    if claims := result.claims():
        lines += ["", "| to be shown | found | |", "|---|---|---|"]
    for claim, value, holds in claims:
        name, sign, limit = parse_claim(claim)
        lines.append(f"| {FIGURES[name]} {sign} {limit:g} | {number(value)} | {'holds' if holds else 'does not hold'} |")
    if answers := about["answers"]:
        lines += ["", "The folder's `model/`, loaded by `AutoModelForCausalLM.from_pretrained`, answers (greedy):", "", "| prompt | answer |", "|---|---|"]
        lines += [f"| {cell(item['prompt'])} | {cell(item['answer'])} |" for item in answers]
    return [*lines, "", made_with(result), "", f"Files: [config.yaml]({link}/config.yaml), [metrics.jsonl]({link}/metrics.jsonl).", ""]


def made_with(result: Result) -> str:
    """The sentence that says what the run was made with."""
    config, status = result.config, result.status
    options = ", ".join(f"{group}={config[group]['name']}" for group in ("model", "data", "algorithm", "loss", "generation"))
    versions = ", ".join(f"{package} {version}" for package, version in status["versions"].items())
    commit = status.get("git_commit") or "unknown"
    return f"Made with {options}; {status['processes']} process(es), {status['threads']} CPU threads; commit `{commit}`; {versions}."


def cell(text: str) -> str:
    """Text inside a Markdown table, as code."""
    return "`" + text.replace("\n", "⏎").replace("|", "¦").replace("`", "'") + "`"


def tables() -> list[dict[str, Any]]:
    """Comparisons over seeds, written by scripts/result_tables.py."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("data/*/table.json"))]


def halving() -> dict[str, Any] | None:
    """The searches of scripts/results_halving.py."""
    path = DOCS / "data" / "halving" / "searches.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def page(results: list[Result]) -> str:
    """docs/results.md."""
    lines = [
        "# Results",
        "",
        "Written by `scripts/results.py` from the runs under `docs/data/`; `make check` writes it again and compares. Do not edit.",
        "",
    ]
    for result in results:
        lines += section(result)
    for table in tables():
        lines += render_table(table)
    if (curves := DOCS / "data" / "sdpo" / "curves.json").exists():
        lines += render_sdpo(json.loads(curves.read_text(encoding="utf-8")))
    if searches := halving():
        lines += render_halving(searches)
    return "\n".join(lines).rstrip() + "\n"


def draw(result: Result) -> None:
    """curve.png of a result: reward of each step with its running mean, and the held-out accuracy; below, the length of completions."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, height_ratios=(2, 1), layout="constrained")
    steps, rewards = zip(*result.curve("reward"), strict=True)
    means = [sum(rewards[max(0, i - WINDOW + 1) : i + 1]) / min(i + 1, WINDOW) for i in range(len(rewards))]
    top.plot(steps, rewards, color="#9db7d5", linewidth=1, label="reward (training)")
    top.plot(steps, means, color="#2b5c8a", linewidth=2, label=f"mean of {WINDOW} steps")
    if accuracy := result.curve("accuracy", "eval"):
        top.plot(*zip(*accuracy, strict=True), "o-", color="#c2571a", label="accuracy (held out, greedy)")
    top.set_title(result.name)
    top.legend(loc="lower right", frameon=False)
    bottom.plot(*zip(*result.curve("completions/mean_length"), strict=True), color="#5f7f5f", label="mean completion length (tokens)")
    bottom.legend(loc="upper right", frameon=False)
    bottom.set_xlabel("optimizer step")
    for axes in (top, bottom):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(result.folder / "curve.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def private_paths(text: str) -> list[str]:
    """Absolute paths in a text that exist on this machine: a result must not tell where it was made."""
    found = re.findall(r"(?<![\w.:/~])/(?:[\w.+=-]+/)+[\w.+=-]*", text)
    return sorted({path for path in found if Path(path).exists()})


def ask(model: Path, prompts: list[str]) -> list[dict[str, str]]:
    """Load the saved model as anyone would and answer each prompt greedily through its chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model)
    answers = []
    for prompt in prompts:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        given = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            out = network.generate(input_ids=given["input_ids"], attention_mask=given["attention_mask"], do_sample=False, max_new_tokens=32)
        answers.append({"prompt": prompt, "answer": str(tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))})
    return answers


def add(run: Path, arguments: argparse.Namespace) -> None:
    """Copy what the page needs out of a run folder. Raises ValueError for a run that is not finished or a file that names a path of this machine."""
    status = json.loads((run / "status.json").read_text(encoding="utf-8"))
    if status["status"] != "finished":
        raise ValueError(f"{run} is {status['status']}, not finished")
    for claim in arguments.claim:
        parse_claim(claim)
    texts = {name: (run / name).read_text(encoding="utf-8") for name in FILES}
    texts["status.json"] = json.dumps({key: value for key, value in status.items() if key not in PRIVATE}, indent=1) + "\n"
    command = arguments.command or shlex.join(["python", "-m", "rlexp.train", *(run / "overrides.txt").read_text(encoding="utf-8").splitlines()])
    about = {"command": command, "about": arguments.about, "claims": arguments.claim, "answers": ask(run / "model", arguments.ask) if arguments.ask else []}
    texts["result.json"] = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    for name, text in texts.items():
        if paths := private_paths(text):
            raise ValueError(f"{name} of {run} names paths of this machine: {', '.join(paths)}")
    folder = DOCS / "data" / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def check(results: list[Result], text: str) -> list[str]:
    """What is wrong with the page or with a claim."""
    target = DOCS / "results.md"
    old = target.read_text(encoding="utf-8") if target.exists() else ""
    problems = list(difflib.unified_diff(old.splitlines(), text.splitlines(), "docs/results.md", "rendered", lineterm=""))
    problems += [f"{result.name}: {claim} does not hold, found {value:.6g}" for result in results for claim, value, holds in result.claims() if not holds]
    problems += [problem for table in tables() for problem in table_problems(table)]
    problems += halving_problems(searches) if (searches := halving()) else []
    problems += [f"docs/data/{result.name}/curve.png is missing" for result in results if not (result.folder / "curve.png").exists()]
    return problems


def main() -> int:
    """Exit code 0, or 1 when --check finds a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    parser.add_argument("--add", type=Path, metavar="RUN_FOLDER", help="copy a finished run to docs/data/NAME first")
    parser.add_argument("--name", help="name of the result")
    parser.add_argument("--command", help="the command that made the run; by default its overrides.txt")
    parser.add_argument("--about", default="", help="what the run shows, one sentence")
    parser.add_argument("--claim", action="append", default=[], help="FIGURE >= NUMBER or FIGURE <= NUMBER; may be repeated")
    parser.add_argument("--ask", action="append", default=[], help="a prompt for the saved model; may be repeated")
    arguments = parser.parse_args()
    if arguments.add:
        if not arguments.name:
            parser.error("--add needs --name")
        add(arguments.add, arguments)
    results = [Result(path.parent) for path in sorted(DOCS.glob("data/*/result.json"))]
    text = page(results)
    if arguments.check:
        problems = check(results, text)
        if problems:
            print("\n".join(problems), "\nrun: python scripts/results.py", sep="", file=sys.stderr)
        return 1 if problems else 0
    (DOCS / "results.md").write_text(text, encoding="utf-8")
    for result in results:
        draw(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
