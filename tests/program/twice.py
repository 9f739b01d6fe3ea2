"""The same command twice at the same moment: `program.twice ARGUMENTS` is two processes of `rlexp.train ARGUMENTS`. Exits with 0 when both did."""

from __future__ import annotations

import os
import runpy
import sys


def train() -> int:
    """Be `python -m rlexp.train`; returns its exit code."""
    sys.argv[0] = "rlexp.train"
    try:
        runpy.run_module("rlexp.train", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


if __name__ == "__main__":
    other = os.fork()
    code = train()
    if other == 0:
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code or os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
