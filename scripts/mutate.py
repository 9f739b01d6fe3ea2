"""Does the test suite notice errors? Puts one small error after another into the objectives and runs the tests that should fail.

    python scripts/mutate.py losses advantages          everything: each loss, the pieces they share, each advantage and algorithm
    python scripts/mutate.py losses.sapo losses.kl      some of it
    python scripts/mutate.py --module FILE --tests FILE any module

Prints a line for each mutant (killed by which test, or SURVIVED) and `killed K/K`; exit code 1 if one survives. scripts/mutants.py lists the
operators. Nothing is written to the working tree: the tests are collected once, and each mutant is a forked process in which the module is
executed again from its changed source before the tests run.

A loss is judged by its own tests alone, those with its name as a parameter or in their code. Its mutants are those of its file and of what its
dataclass says (the denominator). A file with fewer than five places (the clip family, whose term is shared) is counted with the functions it
imports from rlexp.losses, mutated once more for each such loss and judged by that loss's tests. Shared pieces are then judged by all tests of
losses and algorithms, advantages and algorithms by those of advantages and algorithms.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONDONTWRITEBYTECODE="1")

import pytest
from mutants import Mutant, mutants_of
from mutation_runs import Runner, mentioned

ROOT = Path(__file__).resolve().parent.parent
ENOUGH = 5
"""mutants a loss must have"""

NUMERICAL = {"test_loss_gradients.py"}
"""tests that judge no mutant: finite differences take seconds, and the literal reading has the same gradients"""
NO_GRAD = ("stop-gradient", "torch.no_grad() -> lambda function: function")
_INSIDE = "the forward of an autograd function records no gradient"
_CLAMP = "(logp_L.detach() - old_logp_L).clamp(-RATIO_LIMIT, "
EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    ("clipped", "clip_stats", *NO_GRAD): "plain numbers leave it",
    ("correction", "correction_stats", *NO_GRAD): "plain numbers leave it",
    ("correction", "correction_weights", *NO_GRAD): "it reads log-probs that have no gradient",
    ("objective", "PolicyObjective._stats", *NO_GRAD): "plain numbers leave it",
    ("objective", "PolicyObjective._bonus_stats", *NO_GRAD): "plain numbers leave it",
    ("objective", "PolicyObjective.router_part", "stop-gradient", "part.detach() -> part"): "float() takes the number alone; without detach torch warns",
    ("off_policy", "near_policy", *NO_GRAD): "what leaves it are the results of comparisons, which have no gradient",
    ("distillation", "_Divergence.forward", "stop-gradient", "log_p.exp() -> log_p.exp().detach()"): _INSIDE,
    ("distillation", "_slope_and_value", "stop-gradient", "log_p.exp() -> log_p.exp().detach()"): _INSIDE,
    ("distillation", "_slope_and_value", "stop-gradient", "log_q.exp() -> log_q.exp().detach()"): _INSIDE,
    ("distillation", "clipped_ratio", "stop-gradient", f"{_CLAMP}RATIO_LIMIT).exp() -> {_CLAMP}RATIO_LIMIT).exp().detach()"): (
        "both log-probs have no gradient"
    ),
    ("distillation", "clipped_ratio", "clip side", f"{_CLAMP}RATIO_LIMIT) -> {_CLAMP}None)"): ("what is beyond e^20 is cut to the limit after the exponential"),
    (
        "self_distillation",
        "SelfDistillationObjective.distillation",
        "stop-gradient",
        "inputs.logp_L -> inputs.logp_L.detach()",
    ): "clipped_ratio has no gradient",
    ("self_distillation", "SelfDistillationObjective._difference", *NO_GRAD): "plain numbers leave it",
    ("normalize_then_sum", "normalize_then_sum", "sign", "totals - known.mean() -> totals + known.mean()"): (
        "the z of a reward sum to 0 in each group, so the mean of the totals is 0 but for rounding"
    ),
    ("dppo", "dppo", "stop-gradient", "torch.no_grad() -> torch.enable_grad()"): "what leaves the block is compared with a bound, which has no gradient",
    (
        "vespo",
        "_phi",
        "clip side",
        "inputs.rollout_sum(log_ratio_L).clamp(LOG_SMALLEST, LOG_RATIO_LIMIT) -> inputs.rollout_sum(log_ratio_L).clamp(LOG_SMALLEST, None)",
    ): "from 20 on lambda e^s is at least 48516 (lambda >= 1e-4): phi is 0 with or without the bound, or infinite (a huge k), which counts as 0",
}
"""(file, function, operator, change) -> why no test can tell the mutant from the original"""


@dataclass
class Unit:
    """A loss, a shared piece or an advantage: its mutants, and which tests judge it."""

    name: str
    mutants: list[Mutant]
    judges: Callable[[pytest.Item], bool]


def main() -> int:
    """Exit code 0 if every mutant was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="losses, advantages, or one of them: losses.NAME, advantages.NAME")
    parser.add_argument("--module", type=Path, help="a file to mutate")
    parser.add_argument("--tests", type=Path, nargs="*", default=[], help="its test files")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    parser.add_argument(
        "--deadline", type=float, help="seconds a mutant's tests may take before it counts as killed (default: 30 and 20 times as long as without it)"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if options.module is not None:
        sys.path.insert(0, str(options.module.resolve().parent))
        importlib.import_module(options.module.stem)
        units, tests = [Unit(options.module.stem, mutants_of(options.module.resolve()), lambda item: True)], options.tests
    elif options.targets:
        units, tests = units_of(options.targets), [ROOT / "tests" / room for room in ("losses", "advantages", "algorithms")]
    else:
        parser.error("say what to mutate: losses, advantages, or --module FILE --tests FILE")
    unused = excluded(units, everything=set(options.targets) >= {"losses", "advantages"})
    if options.list:
        for unit in units:
            print(*(f"{unit.name}  {mutant}" for mutant in unit.mutants), sep="\n")
        return 0
    few = [unit.name for unit in units if unit.name in _loss_units() and len(unit.mutants) < ENOUGH] if options.module is None else []
    started = time.monotonic()
    runner = Runner([(unit.name, mutant, unit.judges) for unit in units for mutant in unit.mutants], options.jobs, options.deadline)
    runner.warm = options.module is None
    code = pytest.main(["-p", "no:cacheprovider", "-qq", *map(str, tests)], plugins=[runner])
    if runner.killed is None:
        return int(code) or 1
    for name in unused:
        print(f"excluded, but there is no such mutant: {name}")
    for name in few:
        print(f"{name}: fewer than {ENOUGH} mutants")
    print(f"{len(EQUIVALENT) - len(unused)} equivalent mutants left out, {time.monotonic() - started:.0f} s")
    print(f"killed {runner.killed}/{runner.total}")
    return 0 if runner.killed == runner.total and runner.total and not unused and not few else 1


def excluded(units: Iterable[Unit], *, everything: bool) -> list[tuple[str, str, str, str]]:
    """Leave equivalent mutants out; returns the exclusions that match none, when everything is looked at."""
    seen = set()
    for unit in units:
        seen |= {mutant.key for mutant in unit.mutants}
        unit.mutants = [mutant for mutant in unit.mutants if mutant.key not in EQUIVALENT]
    return [key for key in EQUIVALENT if key not in seen] if everything else []


def units_of(targets: list[str]) -> list[Unit]:
    """The units that are asked for, in order; exits with the known names for an unknown one."""
    every = {unit.name: unit for unit in (*_loss_units().values(), *_shared(), *_advantages())}
    chosen: list[Unit] = []
    for target in targets:
        found = [unit for name, unit in every.items() if name == target or name.startswith(f"{target}.")]
        if not found:
            sys.exit(f"unknown target {target!r}: losses, advantages, or one of {', '.join(every)}")
        chosen.extend(unit for unit in found if unit not in chosen)
    return chosen


_cache: dict[str, dict[str, Unit]] = {}


def _loss_units() -> dict[str, Unit]:
    """Each registered loss of this package."""
    if "losses" not in _cache:
        from rlexp.components import register_all
        from rlexp.registry import LOSSES

        register_all()
        names = [name for name in LOSSES.names() if LOSSES.entry(name).origin.startswith("rlexp.")]
        _cache["losses"] = {f"losses.{name}": Unit(f"losses.{name}", _of_loss(name), _names(name)) for name in names}
    return _cache["losses"]


def _of_loss(name: str) -> list[Mutant]:
    """Of its file and what its dataclass says; of the functions it imports too where those are few."""
    from rlexp.registry import LOSSES

    function = inspect.unwrap(LOSSES.load(name))
    path = Path(inspect.getfile(function))
    made = mutants_of(path)
    if len(made) < ENOUGH:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rlexp.losses.") and node.module != "rlexp.losses.inputs":
                source = Path(inspect.getfile(importlib.import_module(node.module)))
                made += [mutant for imported in node.names for mutant in mutants_of(source, only=imported.name)]
    config = LOSSES.config_for(name)
    owner = next(base for base in config.__mro__ if "reduction" in vars(base))
    return made + [mutant for mutant in mutants_of(Path(inspect.getfile(owner)), only=owner.__name__) if "." not in mutant.function]


def _names(name: str) -> Callable[[pytest.Item], bool]:
    """Tests of the losses that have the name as a parameter or say it."""

    def judges(item: pytest.Item) -> bool:
        if not _in_room(item, "losses"):
            return False
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "name" in parameters:
            return parameters["name"] == name
        return name in mentioned(getattr(item, "function", judges))

    return judges


def _shared() -> list[Unit]:
    """What the losses share: ratio, clipped term, correction, masks, KL, entropy, denominators, their sum."""
    own = {Path(inspect.getfile(inspect.unwrap(_load(name)))) for name in _loss_units()}

    def judges(item: pytest.Item) -> bool:
        return _in_room(item, "losses") or _in_room(item, "algorithms")

    paths = [path for path in sorted((ROOT / "rlexp" / "losses").glob("*.py")) if path not in own and path.name != "__init__.py"]
    return [Unit(f"losses.{path.stem}", mutants_of(path), judges) for path in paths]


def _load(unit: str) -> Any:
    from rlexp.registry import LOSSES

    return LOSSES.load(unit.removeprefix("losses."))


def _advantages() -> list[Unit]:
    """Each file of advantages, and each algorithm that makes advantages of rewards (it has `values`) with what these algorithms share."""

    def judges(item: pytest.Item) -> bool:
        return _in_room(item, "advantages") or _in_room(item, "algorithms")

    paths = [path for path in sorted((ROOT / "rlexp" / "advantages").glob("*.py")) if path.name != "__init__.py"]
    paths += [path for path in sorted((ROOT / "rlexp" / "algorithms").glob("*.py")) if "def values(" in path.read_text(encoding="utf-8")]
    return [Unit(f"advantages.{path.stem}", mutants_of(path), judges) for path in paths]


def _in_room(item: pytest.Item, room: str) -> bool:
    return ROOT / "tests" / room in item.path.parents and item.path.name not in NUMERICAL


if __name__ == "__main__":
    sys.exit(main())
