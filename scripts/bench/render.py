"""Write docs/benchmarks.md from docs/data/bench; every number on that page comes from there.

python -m scripts.bench.render            write the page
python -m scripts.bench.render --check    exit 1 if it is out of date
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

from scripts.bench import figures
from scripts.bench.workloads import FIGURES, MEAN_SHARE, THREADS, TRL_BATCHES, WORKLOADS, Workload

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, DATA = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "data" / "bench"
NOTES = "notes.md"
"""beside the data, written by hand: what was tried where a goal is not reached, and what limits it"""
MIB = 2**20

HEAD = f"""# Benchmarks

Written by `scripts/bench/render.py` from the files of its folder under `docs/data`; `make check` writes it again and compares. Do not edit.

```shell no-run: takes up to a quarter of an hour for each workload
$ make bench W=W1
```

rlexp and TRL (`trl==1.16.0`) take turns in one run, a batch each (A B A B ...), in two processes of {THREADS} threads that live through the whole run. The
first batch of each is not counted. Both load the same weights, read the same prompts in the same order, sample as many completions, learn from all of
them with the same cheap reward, and step AdamW once for each pass. A list of EOS ids is sized so that completions are about
{MEAN_SHARE} of the allowed length on average. rlexp runs its own training loop as `python -m rlexp.train` does, TRL its own `GRPOTrainer`, without gradient
checkpointing and dropout, with the fastest per-device batch of {", ".join(map(str, TRL_BATCHES))}. Those batches are often
within a few percent of each other in time and far apart in memory, so the memory of TRL depends on which one was fastest. rlexp asks for large pages
of memory, as its program does (W1 to W3 and W5 were measured before it did). Before anything is timed both sides compute the gradient
of the same rollouts; a run in which they differ is refused.

- **update**: from the last reward to the end of the last optimizer step of the batch, passes for old and reference log-probs included.
- **whole step**: everything between two batches: data, generation, rewards, update, logging.
- **peak memory**: the largest resident set during a batch above the one after loading the model (on a GPU: allocated bytes).
- **ratio**: of medians, TRL's time over rlexp's, and rlexp's memory over TRL's; in brackets the smallest and the largest ratio of a pair.
"""


def load(data: Path) -> dict[str, dict[str, Any]]:
    """Results by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(data.glob("*.json"))}


def page(results: dict[str, dict[str, Any]], notes: str = "") -> str:
    """docs/benchmarks.md."""
    measured = {name: results[name] for name in WORKLOADS if name in results}
    lines = [HEAD]
    if measured:
        lines += ["## Summary", "", *summary(measured), ""]
        lines += [line for name, result in measured.items() for line in section(name, result)]
    lines += [line for name, write in OTHERS.items() if name in results for line in write(results[name])]
    selves = {name: results[f"{name}_self"] for name in WORKLOADS if f"{name}_self" in results}
    if selves:
        lines += ["## rlexp against itself", "", "What the ratios are when both sides are rlexp: the error of the measurement.", "", *itself(selves), ""]
    if notes:
        lines += [notes.strip(), ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(results: dict[str, dict[str, Any]]) -> list[str]:
    """Ratios of all workloads with their goals."""
    lines = [f"| | {' | '.join(name for name, _ in FIGURES.values())} |", "|---|" + "---|" * len(FIGURES)]
    for name, result in results.items():
        cells = [f"{one['ratio']:.2f}{_goal(one)}" for one in result["figures"]]
        lines.append(f"| {name} {result['workload']['title']} | {' | '.join(cells)} |")
    return lines


def _goal(one: dict[str, Any]) -> str:
    return f" ({FIGURES[one['key']][1]} {one['goal']}: {one['verdict']})" if one["goal"] is not None else ""


def section(name: str, result: dict[str, Any]) -> list[str]:
    """A workload with everything that was measured."""
    workload, model = Workload(**result["workload"]), result["model"]
    lengths = model["prompt_tokens"]
    tokens = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    what = f"{workload.prompts} prompts of {tokens} tokens, {workload.generations} completions each of at most {workload.max_new} tokens"
    extra = [f"beta {workload.beta}" if workload.beta else "", f"{workload.iterations} passes" if workload.iterations > 1 else ""]
    extra += [f"LoRA of rank {workload.lora_rank}" if workload.lora_rank else ""]
    extra += [f"rlexp forwards at most {workload.row_tokens} tokens at once" if workload.row_tokens else ""]
    facts = [f"{model['parameters']:,} parameters", what, *filter(None, extra)]
    lines = [f"## {name}: {workload.title}", "", f"{', '.join(facts)}.", ""]
    lines += ["| figure | rlexp | TRL | ratio | range | goal | |", "|---|---|---|---|---|---|---|"]
    lines += [_row(one) for one in result["figures"]]
    lines += ["", "| tokens of a batch, median | generated | forwarded | trained | mean length |", "|---|---|---|---|---|"]
    for side, key in (("rlexp", "rlexp"), ("TRL", "trl")):
        counts = figures.tokens(result[key])
        lines.append(f"| {side} | {' | '.join(f'{counts[count]:,.0f}' for count in figures.COUNTS)} | {figures.mean_length(result[key], workload):.1f} |")
    tried = ", ".join(f"{size}: {seconds:.2f} s" for size, seconds in result["trl_search"].items())
    lines += ["", f"TRL's update by per-device batch: {tried}; measured with {result['trl_batch']}. {len(result['rlexp'])} pairs.", ""]
    lines += [f"Gradient cosine {result['gradient']['cosine']:.7f}, ratio of norms {result['gradient']['norm_ratio']:.5f}.", ""]
    if "limit" in result:
        lines += [share(result["limit"]), ""]
    if result["profile"]:
        lines += [f"Where rlexp's time goes: [{result['profile']}](data/bench/{result['profile']}).", ""]
    return [*lines, made(result), ""]


def _row(one: dict[str, Any]) -> str:
    name, sign = FIGURES[one["key"]]
    unit = (lambda value: f"{value / MIB:,.1f} MiB") if one["key"] == "memory" else (lambda value: f"{value:.3f} s")
    goal, verdict = (f"{sign} {one['goal']}", one["verdict"]) if one["goal"] is not None else ("", "")
    return f"| {name} | {unit(one['ours'])} | {unit(one['theirs'])} | {one['ratio']:.2f} | {one['low']:.2f} to {one['high']:.2f} | {goal} | {verdict} |"


def share(limit: dict[str, Any]) -> str:
    """The sentence about the machine's limit."""
    goal = f" (goal >= {limit['goal']}: {limit['verdict']})" if limit["goal"] is not None else ""
    size = max(limit["gemm"], key=limit["gemm"].get)
    return f"Share of the best matrix product ({limit['best'] / 1e9:.0f} GFLOP/s, squares of {size}) that the update reaches: {limit['share']:.3f}{goal}."


def itself(results: dict[str, dict[str, Any]]) -> list[str]:
    """Ratios of rlexp against rlexp."""
    lines = [f"| | {' | '.join(name for name, _ in FIGURES.values())} | |", "|---|" + "---|" * (len(FIGURES) + 1)]
    for name, result in results.items():
        cells = [f"{one['ratio']:.3f}" for one in result["figures"]]
        lines.append(f"| {name} | {' | '.join(cells)} | {'void' if result['outside'] else 'ok'} |")
    return lines


def limit_section(result: dict[str, Any]) -> list[str]:
    """The machine's limit alone."""
    rates = ", ".join(f"{size}: {rate / 1e9:.0f}" for size, rate in result["limit"]["gemm"].items())
    formula = "(6 x non-embedding parameters x forwarded tokens + FLOPs of the head at trained positions + FLOPs of attention) / seconds of the update / rate"
    lines = ["## The limit", "", f"{share(result['limit'])} The share is {formula}, of W4's update. GFLOP/s of squares of: {rates}.", ""]
    if result["profile"]:
        lines += [f"Where the time goes: [{result['profile']}](data/bench/{result['profile']}).", ""]
    return [*lines, made(result), ""]


def logits_section(result: dict[str, Any]) -> list[str]:
    """Memory of the head."""
    case, sizes = result["case"], list(result["bytes"]["rlexp"])
    lines = ["## Memory of the logits", "", f"Extra bytes of the head's forward and backward above weights and their gradients: hidden size {case['hidden']}, "]
    lines[-1] += f"vocabulary {case['vocabulary']:,}, a process of its own for each number. TRL's is the chunked function its trainer calls."
    lines += ["", f"| | {' | '.join(f'{int(size):,} tokens' for size in sizes)} |", "|---|" + "---|" * len(sizes)]
    for side, name in (("rlexp", "rlexp"), ("trl", "TRL")):
        cells = [f"{result['bytes'][side][size] / MIB:.1f} MiB" for size in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    verdicts = result["verdicts"]
    lines += ["", f"rlexp's over TRL's: {result['ratio']:.3f} (goal <= {case['goal']}: {verdicts['ratio']}). "]
    lines[-1] += f"From the fewest to the most tokens rlexp's grow by a factor of {result['growth']:.2f} (goal <= {case['flat']}: {verdicts['growth']})."
    return [*lines, "", made(result), ""]


def scaling_section(result: dict[str, Any]) -> list[str]:
    """How step time and memory grow."""
    base = result["base"]
    text = f"One size grows, the others stay at {base['prompts']} prompts of {base['prompt_tokens']} tokens, 8 generations, {base['max_new']} new tokens, "
    text += f"vocabulary {base['vocabulary']:,}. TRL's per-device batch is {result['trl_batch']}. "
    text += "rlexp forwards up to 8,192 tokens at once (the default of trainer.tokens_per_microbatch), which is what its memory at many generations is. "
    text += "The network is W1's, with hidden size 64 where the vocabulary grows."
    lines = ["## Scaling", "", text, "", "| | step rlexp | step TRL | ratio | memory rlexp | memory TRL | ratio |", "|---|---|---|---|---|---|---|"]
    names = {"generations": "generations", "vocabulary": "vocabulary", "max_new": "longest completion"}
    for row in result["rows"]:
        step, memory = ({one["key"]: one for one in row["figures"]}[key] for key in ("step", "memory"))
        times = f"{step['ours']:.2f} s | {step['theirs']:.2f} s | {step['ratio']:.2f}"
        bytes_ = f"{memory['ours'] / MIB:,.0f} MiB | {memory['theirs'] / MIB:,.0f} MiB | {memory['ratio']:.2f}"
        lines.append(f"| {names[row['grown']]} {row['value']:,} | {times} | {bytes_} |")
    return [*lines, "", made(result), ""]


OTHERS = {"limit": limit_section, "logits": logits_section, "scaling": scaling_section}


def made(result: dict[str, Any]) -> str:
    """What it was measured on and with."""
    machine = result["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    overrides = f"; with {' '.join(f'`{one}`' for one in result['overrides'])}" if result["overrides"] else ""
    dtype = "bf16" if machine["cuda"] else "fp32"
    where = f"{machine['device']}, {machine['threads']} threads, {dtype}, load average {machine['load']:.1f} before"
    return f"Measured on {where}; commit `{machine['commit']}`; {versions}{overrides}."


def text_of(data: Path) -> str:
    """The page that the files of a folder say."""
    notes = data / NOTES
    return page(load(data), notes.read_text(encoding="utf-8") if notes.exists() else "")


def write() -> None:
    """Write the page."""
    PAGE.write_text(text_of(DATA), encoding="utf-8")


def main() -> int:
    """Exit code 0, or 1 when --check finds the page out of date."""
    if "--check" not in sys.argv[1:]:
        write()
        return 0
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    changes = list(difflib.unified_diff(old.splitlines(), text_of(DATA).splitlines(), "docs/benchmarks.md", "rendered", lineterm=""))
    if changes:
        print("\n".join(changes), "\nrun: python -m scripts.bench.render", sep="", file=sys.stderr)
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
