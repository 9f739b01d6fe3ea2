"""make bench: rlexp beside TRL in the same run.

    python -m scripts.bench                      everything: W1 to W6, the limit, the logits path, the scaling table
    python -m scripts.bench W1                   one workload, or limit, logits, scaling
    python -m scripts.bench W1 --self            rlexp against rlexp: the ratios must be 1

Results go to docs/data/bench and docs/benchmarks.md, unless --no-save. Exit code 1: a run is void, or a process failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.bench import measure, render
from scripts.bench.machine import load, machine
from scripts.bench.processes import BenchError, once
from scripts.bench.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent.parent

QUIET = 0.5
"""load average above which a warning is given"""


def parsed() -> argparse.Namespace:
    """The command line."""
    names = [*WORKLOADS, *measure.SPECIAL]
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", default=["all"], help=f"all, or some of {', '.join(names)}")
    parser.add_argument("--self", dest="itself", action="store_true", help="rlexp against rlexp")
    parser.add_argument("--pairs", type=int, help="rounds that are counted (at least 3)")
    parser.add_argument("--profile", action="store_true", help="a profile even when every goal is reached")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of rlexp's run; may be repeated")
    arguments = parser.parse_args()
    if arguments.which == ["all"]:
        arguments.which = list(WORKLOADS) if arguments.itself else names
    unknown = [name for name in arguments.which if name not in names]
    if unknown or (arguments.itself and set(arguments.which) & measure.SPECIAL.keys()):
        parser.error(f"choose all or some of {', '.join(WORKLOADS if arguments.itself else names)}")
    if arguments.pairs is not None and arguments.pairs < measure.LEAST_PAIRS:
        parser.error(f"--pairs must be at least {measure.LEAST_PAIRS}")
    return arguments


def main() -> int:
    """Exit code."""
    arguments = parsed()
    if not arguments.itself and set(arguments.which) != {"limit"} and importlib.util.find_spec("trl") is None:
        print("the measurement needs TRL: pip install 'rlexp[peer]' (make bench does it)", file=sys.stderr)
        return 1
    outputs = Path(os.environ.get("RLEXP_OUTPUTS") or ROOT / "outputs") / "bench"
    outputs.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=outputs))
    busy = load()
    if busy > QUIET:
        print(f"the machine is busy (load average {busy:.1f}): these figures will not be those of a quiet one", file=sys.stderr)
    about = once("machine", "scripts.bench.machine:main", scratch / "machine.log")
    data = scratch if arguments.no_save else render.DATA
    bench = measure.Bench(scratch, outputs, data, about["cuda"], tuple(arguments.set), arguments.pairs, arguments.profile)
    failed = False
    for name in arguments.which:
        try:
            result = one(bench, name, arguments.itself)
        except BenchError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
            continue
        failed = failed or bool(result.get("outside"))
        if not arguments.no_save:
            result = {"machine": machine(about, busy), "overrides": arguments.set, **result}
            render.DATA.mkdir(parents=True, exist_ok=True)
            (render.DATA / f"{name}{'_self' if arguments.itself else ''}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            render.write()
        if not failed:
            _tidy(scratch)
    if not failed and not arguments.no_save:
        shutil.rmtree(scratch)
    return int(failed)


def one(bench: measure.Bench, name: str, itself: bool) -> measure.Result:
    """Measure one thing."""
    if name in measure.SPECIAL:
        return measure.SPECIAL[name](bench)
    return measure.against_itself(bench, WORKLOADS[name]) if itself else measure.against_trl(bench, WORKLOADS[name])


def _tidy(scratch: Path) -> None:
    """Gradients are as large as the model."""
    for path in scratch.glob("*/gradient.safetensors"):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
