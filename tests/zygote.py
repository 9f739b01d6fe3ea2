"""Runs rlexp's programs as real processes without paying their imports each time: a process that has imported everything forks for each.

Protocol: one JSON object a line on stdin {module, argv, env, cwd, out, err}; the answer is the pid, then (on request) the exit status.
Nothing is computed before the fork, so no threads exist that a fork would lose.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys

from nursery import SPAWN, Nursery, forking


def child(job: dict) -> None:
    """Become a program that the tests start."""
    for number, path in ((1, job["out"]), (2, job["err"])):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in job.get("unset", ()):
        os.environ.pop(name, None)
    os.environ.update(job["env"])
    become(job)


def grandchild(job: dict) -> None:
    """Become a program that such a program starts."""
    os.environ.clear()
    os.environ.update(job["env"])
    become(job)


def become(job: dict) -> None:
    """Run a module as a program, and end."""
    os.setsid()
    os.chdir(job["cwd"])
    if SPAWN not in os.environ:
        subprocess.Popen = forking(Nursery(grandchild))
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    sys.argv = [job["module"], *job["argv"]]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    code = 0
    try:
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else (0 if error.code is None else 1)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Import, then fork for each line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some packages print while they are imported
    import deepspeed  # noqa: F401
    import hydra.main  # noqa: F401
    import models_for_tests  # noqa: F401
    import pandas  # noqa: F401
    import peft  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    import rlexp.build
    import rlexp.generation.native
    import rlexp.launch.start
    import rlexp.losses.dapo
    import rlexp.reports.run_view
    import rlexp.reports.sweep_page
    import rlexp.rollout.sync  # noqa: F401
    from rlexp.components import register_all
    from rlexp.registry import publish

    # schemas of all components: a third of a second of each program
    register_all()
    publish()
    # patterns of all architectures, compiled at the first model that is saved or gets an adapter: a sixth of a short run
    get_checkpoint_conversion_mapping("qwen3")
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(job)
        answers.write(f"{pid}\n")
        answers.flush()
        _, status = os.waitpid(pid, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
