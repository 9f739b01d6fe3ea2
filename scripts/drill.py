"""Kill random processes of runs at random moments and see what becomes of them: python scripts/drill.py ranks --times 20

ranks: a run of the embedded default with two processes; one of them is killed with SIGKILL somewhere between its start and its end. The run must end
within a deadline, leave no process behind, and the same command must bring it to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STEPS = 6
OVERRIDES = [
    *("strategy=ddp", "cluster.processes_per_node=2", "run.name=drill", f"trainer.max_steps={STEPS}", "checkpoint.steps=1", "evaluation=none"),
    *("rollout.prompts_per_batch=4", "algorithm.num_generations=4", "rollout.max_completion_length=8", "data.size=256", "tracker.rollout_steps=100"),
]
"""the default task in little"""
DEADLINE = 30.0
"""Seconds from the death of a rank to the end of the run"""
PATIENCE = 300.0
"""Seconds for a whole run on a slow machine"""
POLL = 0.02


def ranks_of(run: Path) -> dict[int, int]:
    """Rank -> pid of the rank processes of a run folder."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            if b"rlexp.launch.worker" in command and str(run).encode() in command:
                environment = dict(item.partition(b"=")[::2] for item in (path / "environ").read_bytes().split(b"\0"))
                found[int(environment[b"RANK"])] = int(path.name)
        except (OSError, KeyError):
            continue
    return found


def family(outputs: Path) -> list[str]:
    """Live processes that were started for these outputs, whoever is their parent by now."""
    mark, found = f"RLEXP_OUTPUTS={outputs}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(f"{path.name} {(path / 'cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}")
        except OSError:
            continue
    return found


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition. Returns whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


class Drill:
    """One run that loses a rank. outputs: its own RLEXP_OUTPUTS."""

    def __init__(self, outputs: Path) -> None:
        self.outputs, self.run = outputs, outputs / "drill"

    def start(self) -> subprocess.Popen[bytes]:
        """The command of the run."""
        log = open(self.outputs / "console.log", "ab")  # noqa: SIM115 (the child's; closed below)
        environment = {**os.environ, "RLEXP_OUTPUTS": str(self.outputs)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        with log:
            return subprocess.Popen([sys.executable, "-m", "rlexp.train", *OVERRIDES], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def status(self) -> str:
        """What status.json says."""
        path = self.run / "status.json"
        return str(json.loads(path.read_text())["status"]) if path.exists() else ""

    def kill_one(self, process: subprocess.Popen[bytes], moments: random.Random, whole: float) -> bool:
        """Kill a random rank at a random moment. Returns whether there was one, i.e. the run had not ended before."""
        if not until(lambda: len(ranks_of(self.run)) == 2 or process.poll() is not None, PATIENCE) or process.poll() is not None:
            return False
        time.sleep(moments.uniform(0.0, whole))
        ranks = ranks_of(self.run)
        if len(ranks) < 2:
            return False
        os.kill(ranks[moments.randrange(2)], signal.SIGKILL)
        return True

    def ended(self, process: subprocess.Popen[bytes], killed: bool) -> bool:
        """Whether the run ended within the deadline, and said how."""
        in_time = until(lambda: process.poll() is not None, DEADLINE if killed else PATIENCE)
        if not in_time:
            process.kill()
            process.wait()
        return in_time and self.status() in (("failed", "finished") if killed else ("finished",))

    def resumed(self) -> bool:
        """Whether the same command brings the run to its end, with every step once."""
        if self.start().wait(PATIENCE) != 0 or self.status() != "finished":
            return False
        lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if line["split"] == "train"] == list(range(1, STEPS + 1))


def drill_ranks(times: int, seed: int) -> bool:
    """Prints a line for each time and the summary. Returns whether all went well. A run that had ended before its moment came is made again."""
    moments = random.Random(seed)
    whole = time_of_a_run()
    if whole is None:
        return False
    done = ended = resumed = orphans = 0
    for _ in range(3 * times):
        with tempfile.TemporaryDirectory(prefix="rlexp_drill_") as folder:
            drill = Drill(Path(folder))
            process, began = drill.start(), time.monotonic()
            killed = drill.kill_one(process, moments, whole)
            struck = time.monotonic()
            well = drill.ended(process, killed)
            seconds = time.monotonic() - struck
            until(lambda: not family(drill.outputs), 5.0)  # noqa: B023
            left = family(drill.outputs)
            if well and not killed and not left:
                continue
            again = drill.resumed()
            done, ended, resumed, orphans = done + 1, ended + well, resumed + again, orphans + len(left)
            text = f"killed after {struck - began:.1f} s, ended {seconds:.1f} s later, {'resumed' if again else 'NOT RESUMED'}"
            print(f"{done}: {text}", *left, flush=True)
            if not (well and again):
                print((drill.outputs / "console.log").read_text()[-4000:], file=sys.stderr)
        if done == times:
            break
    print(f"{ended}/{times} ended within the deadline, {resumed}/{times} resumed, {orphans} orphans")
    return ended == resumed == times and orphans == 0


def time_of_a_run() -> float | None:
    """How long a run takes here from the moment its ranks are there; None, with what it said, when it fails."""
    with tempfile.TemporaryDirectory(prefix="rlexp_drill_") as folder:
        drill = Drill(Path(folder))
        process = drill.start()
        until(lambda: len(ranks_of(drill.run)) == 2 or process.poll() is not None, PATIENCE)
        began = time.monotonic()
        if process.wait(PATIENCE) != 0:
            print((drill.outputs / "console.log").read_text(), file=sys.stderr)
            return None
        return time.monotonic() - began


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ranks",))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="of the moments; default: others each time")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    print(f"seed {seed}", flush=True)
    sys.exit(0 if drill_ranks(arguments.times, seed) else 1)


if __name__ == "__main__":
    main()
