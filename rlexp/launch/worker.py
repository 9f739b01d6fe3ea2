"""One rank of a run: `python -m rlexp.launch.worker FOLDER`, started by rlexp.launch.ranks. Hydra's command line is not needed here."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rlexp.config.errors import PeerError
from rlexp.config.saved import load_config
from rlexp.launch.failure import failure_of
from rlexp.launch.folder import RunFolder
from rlexp.launch.log import logging_to
from rlexp.launch.pages import use_large_pages
from rlexp.launch.ranks import write_failure
from rlexp.launch.signals import handling, shield_children, shielded
from rlexp.launch.watch import follow_parent

log = logging.getLogger(__name__)


def guarded_rank(folder: RunFolder, rank: int, work: Callable[[], int]) -> int:
    """Run the work of a rank; when it raises, leave word for the parent, which prints it, and return 1."""
    # Only rank 0 writes to train.log and the console; the output of the others goes to files of their own.
    path = folder.log_path if rank == 0 else folder.ranks_path / f"rank_{rank}.txt"
    with logging_to(path, console=True), handling(announce=False):
        try:
            return work()
        except BaseException as error:  # told to the parent, whatever it is
            write_failure(folder.ranks_path, rank, failure_of(error), error.rank if isinstance(error, PeerError) else None)
            return 1


def main() -> None:
    """Run the rank that the environment names."""
    use_large_pages()  # also on the further nodes of a job
    follow_parent(lambda: os.killpg(os.getpgrp(), signal.SIGKILL))
    if shielded():
        shield_children()
    folder = RunFolder(Path(sys.argv[1]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def work() -> int:
        from rlexp.build import run  # imports torch

        return run(load_config(folder.config_path), folder, rank=rank, world=world)

    code = guarded_rank(folder, rank, work)
    if code != 1:  # after a failure exit handlers could wait for peers
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written and closed. Taking the interpreter down would abort the process when a daemon thread comes back from native code meanwhile
    # ("terminate called without an active exception").
    os._exit(code)


if __name__ == "__main__":
    main()
