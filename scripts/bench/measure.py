"""One workload: prepare, search TRL's batch, compare gradients, then A B A B. Returns what goes to docs/data/bench. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlexp.launch.pages import LARGE_PAGES
from scripts.bench import figures
from scripts.bench.processes import EXACT_MEMORY, BenchError, Record, Side, once
from scripts.bench.workloads import FIGURES, LOGITS, SCALING, SCALING_BATCH, SHARE_GOAL, WORKLOADS, Workload

RLEXP, TRL = "scripts.bench.side_rlexp:main", "scripts.bench.side_trl:main"
AS_STARTED = {LARGE_PAGES: "1"}
"""what the program sets for itself before it trains, and the measured process skips"""
LEAST_PAIRS = 3
SECONDS = 840.0
"""of a whole workload: no further pair is begun that would end later"""
Result = dict[str, Any]


@dataclass
class Bench:
    """Where and how to measure."""

    scratch: Path
    """logs, run folders, gradients"""
    inputs: Path
    """prepared models, kept between runs"""
    profiles: Path
    """folder of the profiles"""
    cuda: bool
    extra: tuple[str, ...] = ()
    """overrides of rlexp's run"""
    pairs: int | None = None
    always_profile: bool = False

    def prepared(self, workload: Workload) -> tuple[Path, dict[str, Any]]:
        """Folder of the inputs, and what the model is."""
        return once("prepare", "scripts.bench.prepare:main", self.log(f"{workload.name}_prepare"), workload, self.inputs)

    def log(self, name: str) -> Path:
        """A log file."""
        return self.scratch / f"{name}.log"

    def rlexp(self, workload: Workload, inputs: Path, name: str = "rlexp", record: bool = False) -> Side:
        """An rlexp process, with its model loaded."""
        scratch = self.scratch / f"{workload.name}_{name}"
        scratch.mkdir(parents=True, exist_ok=True)
        process = Side(name, RLEXP, scratch / "out.log", workload, inputs, scratch, self.extra, record, environment=AS_STARTED)
        return _loaded(process)

    def trl(self, workload: Workload, inputs: Path, batch: int, compare: bool) -> Side:
        """A TRL process, with its model loaded; it reads what rlexp recorded."""
        scratch = self.scratch / f"{workload.name}_rlexp"
        return _loaded(Side("TRL", TRL, scratch / "trl.log", workload, inputs, scratch, batch, compare))

    def search(self, workload: Workload, inputs: Path) -> dict[int, float]:
        """Seconds of TRL's update for each rollout, by per-device batch, printed as they come."""
        side = Side(
            "TRL search", "scripts.bench.side_trl:search", self.log(f"{workload.name}_search"), workload, inputs, self.scratch / f"{workload.name}_rlexp"
        )
        found: dict[int, float] = {}
        print("  TRL's update by per-device batch:", end="", flush=True)
        try:
            for _ in workload.trl_batches:
                size, seconds = side.answer()
                found[size] = seconds
                print(f" {size}: {seconds * workload.rollouts:.2f} s", end="", flush=True)
        finally:
            print()
            side.stop()
        return found

    def gemm(self) -> dict[int, float]:
        """Rates of matrix products now."""
        return once("limit", "scripts.bench.limit:main", self.log("limit"))


def _loaded(side: Side) -> Side:
    side.answer()
    return side


def alternate(a: Side, b: Side, pairs: int, until: float) -> tuple[list[Record], list[Record]]:
    """Batches in turn. until: time.monotonic() after which no pair is begun that is not needed."""
    ours: list[Record] = []
    theirs: list[Record] = []
    longest = 0.0
    while len(ours) < pairs and (len(ours) < LEAST_PAIRS or time.monotonic() + longest < until):
        since = time.monotonic()
        ours.append(a.turn())
        theirs.append(b.turn())
        longest = max(longest, time.monotonic() - since)
    return ours, theirs


def against_trl(bench: Bench, workload: Workload) -> Result:
    """rlexp and TRL in turn."""
    until = time.monotonic() + SECONDS
    print(f"{workload.name}: {workload.title}", flush=True)
    inputs, about = bench.prepared(workload)
    limit = bench.gemm() if workload.model != "random" and not workload.lora_rank else {}
    mine = bench.rlexp(workload, inputs, record=True)
    peer: Side | None = None
    try:
        mine.turn()  # dropped; its rollouts are what TRL repeats
        batches = bench.search(workload, inputs)
        batch = min(batches, key=lambda size: batches[size])
        peer = bench.trl(workload, inputs, batch, compare=True)
        first = peer.turn()  # dropped too
        agrees = figures.same_gradient(first, bench.cuda)
        print(f"  gradient cosine {first['cosine']:.7f}, norms {first['norm_ratio']:.5f} {'ok' if agrees else 'DIFFERENT'}", flush=True)
        if not agrees:
            raise BenchError(f"{workload.name}: the two sides do not compute the same gradient, so their times mean nothing")
        ours, theirs = alternate(mine, peer, bench.pairs or workload.pairs, until)
        if limit:
            limit = {size: max(rate, limit[size]) for size, rate in bench.gemm().items()}
        found = figures.figures(ours, theirs, workload.goals)
        profile = _profile(bench, workload, mine, any(one.verdict == "below" for one in found))
    finally:
        for side in (mine, peer):
            if side is not None:
                side.stop()
    result = {
        "workload": asdict(workload),
        "model": about,
        "trl_batch": batch,
        "trl_search": {str(size): seconds * workload.rollouts for size, seconds in batches.items()},
        "gradient": {"cosine": first["cosine"], "norm_ratio": first["norm_ratio"]},
        "figures": figures.as_dict(found),
        "rlexp": ours,
        "trl": theirs,
        "profile": profile,
    }
    if limit:
        result["limit"] = _limit(about, ours, limit, with_goal=workload.name == "W4")
    report(result)
    return result


def _profile(bench: Bench, workload: Workload, side: Side, below: bool) -> str | None:
    """Name of the profile of one more batch, made when a figure is below its goal or one is asked for."""
    if not (below or bench.always_profile):
        return None
    name = f"{workload.name}_profile.txt"
    side.turn(("profile", bench.profiles / name))
    print(f"  profile of one more batch: {bench.profiles / name}")
    return name


def _limit(about: dict[str, Any], records: list[Record], rates: dict[int, float], with_goal: bool) -> Result:
    best = max(rates.values())
    share = figures.share_of_limit(about, records, best)
    goal = SHARE_GOAL if with_goal else None
    verdict = "-" if goal is None else "ok" if share >= goal else "below"
    return {"gemm": {str(size): rate for size, rate in rates.items()}, "best": best, "share": share, "goal": goal, "verdict": verdict}


def report(result: Result) -> None:
    """One line for each figure."""
    workload = Workload(**result["workload"])
    for side in ("rlexp", "trl"):
        counts = figures.tokens(result[side])
        length = figures.mean_length(result[side], workload)
        print(
            f"  {side:5}: "
            + ", ".join(f"{name} {value:,.0f}" for name, value in counts.items())
            + f" tokens; mean length {length:.1f} of {workload.max_new} ({length / workload.max_new:.2f})"
        )
    for one in result["figures"]:
        print(line(one, result.get("profile")), flush=True)
    if "limit" in result:
        limit = result["limit"]
        print(
            f"  share of the best matrix product ({limit['best'] / 1e9:.0f} GFLOP/s): {limit['share']:.3f} (goal >= {SHARE_GOAL}) {limit['verdict']}",
            flush=True,
        )


def line(one: dict[str, Any], profile: str | None) -> str:
    """A figure as it is printed."""
    name, sign = FIGURES[one["key"]]
    scale, unit = (1 / 2**20, "MiB") if one["key"] == "memory" else (1.0, "s")
    goal = f" (goal {sign} {one['goal']})" if one["goal"] is not None else ""
    tail = f" (profile: {profile})" if one["verdict"] == "below" and profile else ""
    values = f"rlexp {one['ours'] * scale:.3f} {unit}, other {one['theirs'] * scale:.3f} {unit}"
    return f"  {name}: {one['ratio']:.2f} ({one['low']:.2f}-{one['high']:.2f}; {values}){goal} {one['verdict']}{tail}"


def against_itself(bench: Bench, workload: Workload) -> Result:
    """rlexp and rlexp in turn: how far from 1 the ratios are that mean nothing."""
    print(f"{workload.name} --self: rlexp against rlexp", flush=True)
    inputs, about = bench.prepared(workload)
    sides: list[Side] = []
    try:
        for name in ("rlexp_a", "rlexp_b"):
            sides.append(bench.rlexp(workload, inputs, name))
        for side in sides:
            side.turn()
        ours, theirs = alternate(sides[0], sides[1], bench.pairs or workload.pairs, time.monotonic() + SECONDS)
    finally:
        for side in sides:
            side.stop()
    found = figures.figures(ours, theirs, {})
    outside = figures.void(found)
    for one in figures.as_dict(found):
        print(line(one, None))
    print(f"  void: {', '.join(outside)} outside of {figures.SELF_RANGE}" if outside else "  ok")
    return {"workload": asdict(workload), "model": about, "figures": figures.as_dict(found), "outside": outside, "rlexp": ours, "other": theirs}


def limit_alone(bench: Bench) -> Result:
    """The best matrix product, and the share of it that rlexp's update of W4 reaches."""
    workload = WORKLOADS["W4"]
    print("limit: the update of W4 against the best matrix product", flush=True)
    inputs, about = bench.prepared(workload)
    rates = bench.gemm()
    side = bench.rlexp(workload, inputs)
    try:
        side.turn()
        records = [side.turn() for _ in range(LEAST_PAIRS)]
        found = _limit(about, records, {size: max(rate, rates[size]) for size, rate in bench.gemm().items()}, with_goal=True)
        profile = _profile(bench, workload, side, found["verdict"] == "below")
    finally:
        side.stop()
    for size, rate in found["gemm"].items():
        print(f"  {size} x {size}: {rate / 1e9:.1f} GFLOP/s")
    print(f"  share {found['share']:.3f} (goal >= {SHARE_GOAL}) {found['verdict']}" + (f" (profile: {profile})" if profile else ""), flush=True)
    return {"workload": asdict(workload), "model": about, "limit": found, "rlexp": records, "profile": profile}


def logits(bench: Bench) -> Result:
    """Extra bytes of the head on both sides."""

    def extra(side: str, tokens: int) -> int:
        arguments = (side, tokens, LOGITS)
        return once("logits", "scripts.bench.logits:main", bench.log(f"logits_{side}_{tokens}"), *arguments, environment=EXACT_MEMORY)

    found = {side: {tokens: extra(side, tokens) for tokens in LOGITS.tokens} for side in ("rlexp", "trl")}
    first, last = LOGITS.tokens[0], LOGITS.tokens[-1]
    ratio, growth = found["rlexp"][first] / found["trl"][first], found["rlexp"][last] / found["rlexp"][first]
    verdicts = {"ratio": "ok" if ratio <= LOGITS.goal else "below", "growth": "ok" if growth <= LOGITS.flat else "below"}
    print(f"logits path, hidden {LOGITS.hidden}, vocabulary {LOGITS.vocabulary:,}:")
    for side, values in found.items():
        print(f"  {side:5}: " + ", ".join(f"{tokens:,} tokens {bytes_ / 2**20:.1f} MiB" for tokens, bytes_ in values.items()))
    print(f"  ratio at {first:,} tokens: {ratio:.3f} (goal <= {LOGITS.goal}) {verdicts['ratio']}")
    print(f"  growth from {first:,} to {last:,} tokens: {growth:.2f} (goal <= {LOGITS.flat}) {verdicts['growth']}", flush=True)
    sides = {side: {str(tokens): value for tokens, value in values.items()} for side, values in found.items()}
    return {"case": asdict(LOGITS), "bytes": sides, "ratio": ratio, "growth": growth, "verdicts": verdicts}


def scaling(bench: Bench) -> Result:
    """Step time and memory of both sides as one size grows."""
    until, rows = time.monotonic() + SECONDS, []
    for grown, points in SCALING.items():
        print(f"scaling: {grown}")
        for workload in points:
            inputs, _ = bench.prepared(workload)
            sides: list[Side] = []
            try:
                sides.append(bench.rlexp(workload, inputs))
                sides.append(bench.trl(workload, inputs, SCALING_BATCH, compare=False))
                for side in sides:
                    side.turn()
                ours, theirs = alternate(sides[0], sides[1], bench.pairs or workload.pairs, until)
            finally:
                for side in sides:
                    side.stop()
            found = figures.as_dict(figures.figures(ours, theirs, {}))
            rows.append({"grown": grown, "value": getattr(workload, grown), "figures": found})
            print(f"  {grown} {getattr(workload, grown)}:")
            for one in found:
                print("  " + line(one, None), flush=True)
    return {"rows": rows, "base": asdict(SCALING["generations"][0]), "trl_batch": SCALING_BATCH}


SPECIAL: dict[str, Callable[[Bench], Result]] = {"limit": limit_alone, "logits": logits, "scaling": scaling}
"""what can be measured beside the workloads"""
