"""Several ranks without the launcher and without its imports: `cluster.world JOBS.json` forks them from a process that has imported everything.

A job is {"world": 2, "folder": F, "overrides": [...]}, a run as a rank process makes it (continued if F holds one), or {"world": 2, "call":
"module:function", "arguments": [...]}. Jobs run one after the other; the first that fails ends all, and its output is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from programs import Done, Programs

DEADLINE = 240.0
"""seconds for one job"""


def start_rank(work: Callable[[int], int], rank: int, world: int, port: int, output: Path) -> int:
    """Fork one rank; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        code = work(rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_world(work: Callable[[int], int], world: int, folder: Path) -> list[int]:
    """Exit codes of the ranks; when one fails, the others are killed."""
    from rlexp.launch.ranks import free_port

    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    ranks = {start_rank(work, rank, world, port, folder / f"rank_{rank}.txt"): rank for rank in range(world)}
    codes: dict[int, int] = {}
    deadline = time.monotonic() + DEADLINE
    while len(codes) < world:
        for pid, rank in ranks.items():
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        if any(code not in (0, 75) for code in codes.values()) or time.monotonic() > deadline:
            for pid, rank in ranks.items():
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    codes[rank] = -9
        time.sleep(0.02)
    return [codes[rank] for rank in range(world)]


def run_job(job: dict[str, Any]) -> Callable[[int], int]:
    """What a rank of a run does."""
    from run_configs import composed

    from rlexp.build import run
    from rlexp.config.saved import save_config
    from rlexp.launch.folder import RunFolder

    folder, config = Path(job["folder"]), composed(*job["overrides"])
    for name in ("rollouts", "checkpoints"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    save_config(config, folder / "config.yaml")

    def rank_of_run(rank: int) -> int:
        os.environ |= job["env"]
        return run(config, RunFolder(folder), rank=rank, world=job["world"])

    return rank_of_run


def call_job(job: dict[str, Any]) -> Callable[[int], int]:
    """What a rank does that calls a function."""
    module, _, name = job["call"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return lambda rank: function(*job["arguments"]) or 0


def main() -> None:
    """Run the jobs of a file."""
    for number, job in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        outputs = Path(sys.argv[1]).parent / f"job_{number}"
        codes = run_world(call_job(job) if "call" in job else run_job(job), job["world"], outputs)
        wanted = job.get("code", 0)
        if (wanted not in codes) if wanted else any(codes):
            for path in sorted(outputs.iterdir()):
                print(f"== job {number} {path.name}, exit {codes}\n{path.read_text()[-6000:]}")
            sys.exit(1)


def in_worlds(programs: Programs, where: Path, *jobs: dict[str, Any], env: dict[str, str] | None = None) -> None:
    """Run jobs; fails with what their ranks said."""
    where.mkdir(parents=True, exist_ok=True)
    path = where / "jobs.json"
    path.write_text(json.dumps(jobs))
    done: Done = programs.run("cluster.world", str(path), cwd=where, env=env, timeout=DEADLINE * len(jobs))
    assert done.code == 0, f"exit {done.code}\n{done.out[-8000:]}\n{done.err[-4000:]}"


def run_of(
    folder: Path, world: int, overrides: Sequence[str], strategy: str | None = None, *, code: int = 0, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """The job of one run; strategy: None is ddp, or single for one process. code: what one of its ranks ends with, if not all with 0 (-9: it is killed)."""
    chosen = strategy or ("single" if world == 1 else "ddp")
    more = [f"strategy={chosen}", f"cluster.processes_per_node={world}", *(["strategy.timeout=60"] if chosen != "single" else [])]
    last_of_each = {override.partition("=")[0]: override for override in [*overrides, *more]}
    return {"world": world, "folder": str(folder), "overrides": list(last_of_each.values()), "code": code, "env": env or {}}


if __name__ == "__main__":
    main()
