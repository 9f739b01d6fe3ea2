"""Many command lines of `rlexp-train`, each in a process of its own, from one parent that has imported the program but not torch.

Reads a JSON list of argument lists from stdin; prints a JSON list of {code, out, err, torch} (torch: whether it was imported).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path


def child(arguments: list[str], folder: Path) -> None:
    """Become the program; what it prints and whether it imported torch lands in files."""
    from rlexp.train import main

    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.argv = ["rlexp-train", *arguments]
    code = 0
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / "torch").write_text(str("torch" in sys.modules))
    os._exit(code)


def main() -> None:
    """Fork for each command line."""
    import rlexp.train  # noqa: F401

    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for arguments in json.load(sys.stdin):
            pid = os.fork()
            if pid == 0:
                child(arguments, folder)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            out, err, torch = ((folder / part).read_text() for part in ("out", "err", "torch"))
            results.append({"code": code, "out": out, "err": err, "torch": torch == "True"})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
