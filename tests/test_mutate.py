"""scripts/mutate.py tells a test suite with a hole from one without, and writes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MUTATE = Path(__file__).resolve().parent.parent / "scripts" / "mutate.py"
TOY = '''
"""A bounded number."""

LIMIT = 3


class Half:
    """With super(), which a renewed class must keep."""

    def of(self, x):
        return x / 2


class Bounded(Half):
    def of(self, x, low=0, high=LIMIT):
        return super().of(min(max(x, low), high)) - 1
'''
HOLE = """
from toy import Bounded

def test_inside():
    assert -1 <= Bounded().of(2) <= 0.5
"""
WHOLE = (
    HOLE
    + """
def test_exactly():
    assert Bounded().of(2) == 0

def test_outside():
    assert Bounded().of(-4) == -1 and Bounded().of(7) == 0.5

def test_the_limit():
    import toy

    assert toy.LIMIT == 3
"""
)


def mutate(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "toy.py").write_text(TOY)
    (folder / "test_toy.py").write_text(tests)
    command = [sys.executable, str(MUTATE), "--module", str(folder / "toy.py"), "--tests", str(folder / "test_toy.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


def kinds(done: subprocess.CompletedProcess[str]) -> tuple[list[str], list[str]]:
    """The lines of killed mutants and of survivors."""
    lines = done.stdout.splitlines()
    return [line for line in lines if line.startswith("killed    ")], [line for line in lines if line.startswith("SURVIVED  ")]


def test_a_suite_with_a_hole(tmp_path: Path):
    done = mutate(tmp_path, HOLE)
    killed, survived = kinds(done)
    assert done.returncode == 1, done.stderr
    assert any(line.endswith("toy.py:16 Bounded.of: clip side: max(x, low) -> min(x, low)") for line in survived)
    assert any("sign: super().of(min(max(x, low), high)) - 1 -> super().of(min(max(x, low), high)) + 1  by test_toy.py::test_inside" in line for line in killed)
    assert done.stdout.splitlines()[-1] == f"killed {len(killed)}/{len(killed) + len(survived)}"
    assert (tmp_path / "toy.py").read_text() == TOY


def test_a_suite_without_one(tmp_path: Path):
    done = mutate(tmp_path, WHOLE)
    killed, survived = kinds(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not survived and len(killed) >= 9 and done.stdout.splitlines()[-1] == f"killed {len(killed)}/{len(killed)}"


def test_a_suite_that_fails_anyway_proves_nothing(tmp_path: Path):
    done = mutate(tmp_path, HOLE.replace("<= 0.5", "< -1"))
    assert done.returncode == 1 and "the tests do not pass without any error" in done.stdout and "killed" not in done.stdout


def test_a_mutant_that_hangs_is_killed(tmp_path: Path):
    done = mutate(tmp_path, "from toy import Bounded\n\ndef test_it_ends():\n    while Bounded().of(2) > 1:\n        pass\n", "--deadline", "2")
    killed, survived = kinds(done)
    assert done.returncode == 1 and len(killed) == 1 and killed[0].endswith(" - 1 -> super().of(min(max(x, low), high)) + 1  by the deadline") and survived
