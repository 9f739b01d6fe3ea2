"""Last of the tests with Slurm: nothing of them is left."""

from __future__ import annotations

from collections.abc import Callable

from slurm_here import Slurm, until


def test_no_process_is_left(slurm: Slurm, tell: Callable[[str], None]) -> None:
    until(lambda: not slurm.queue(), 60, str(slurm.queue()))
    until(lambda: not slurm.leftovers(), 30, str(slurm.leftovers()))
    tell("leftovers 0")
