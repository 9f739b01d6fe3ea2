"""Every command of README and docs runs as it is written, and prints what the page shows; those that cannot say why and are at least valid."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, Block, blocks, matches, overrides_of
from programs import Programs
from run_configs import composed

from rlexp.config import validate_generation, vllm_server

FOREIGN = ("RLEXP_OUTPUTS", "RLEXP_CONF", "HYDRA_FULL_ERROR")
"""variables of whoever runs the tests that a reader of the page does not have"""
RUNNABLE = [page for page in PAGES if any(block.is_shell and "no-run" not in block.marks for block in blocks(page))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shell_blocks_are_marked(page: Path) -> None:
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert (block.language == "shell") == block.is_shell, f"{where}: a block of commands is called shell, and its lines start with $"
        assert block.marks.keys() <= {"no-run", "file", "exit"}, where
        assert len(block.marks.get("no-run", "a reason")) > 5, f"{where}: no-run needs a reason"


PROGRAM = re.compile(r"((?:[A-Z_]+=\S+ )*)python -m (rlexp\.\w+)( [^|&;<>$`#]*)?$")
"""a command that is a program of rlexp and nothing else: variables, module, arguments"""


def run_command(command: str, cwd: Path, environment: dict[str, str], programs: Programs) -> tuple[int, str]:
    """Exit code and all that it printed."""
    whole = " ".join(command.replace("\\\n", " ").split())
    if alone := PROGRAM.match(whole):
        more = dict(word.split("=", 1) for word in alone[1].split())
        done = programs.run(alone[2], *shlex.split(alone[3] or ""), cwd=cwd, env={**environment, **more}, unset=FOREIGN, merged=True)
        return done.code, done.out
    ran = subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return ran.returncode, ran.stdout


def run_block(block: Block, where: str, cwd: Path, environment: dict[str, str], programs: Programs) -> None:
    commands = block.commands()
    for command, shown in commands:
        code, printed = run_command(command, cwd, environment, programs)
        wanted = int(block.marks.get("exit", "0")) if (command, shown) == commands[-1] else 0
        assert code == wanted, f"{where}: `{command}` ended with {code}:\n{printed}"
        missing = matches(shown, printed)
        assert missing is None, f"{where}: `{command}` printed no line {missing!r} there:\n{printed}"


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_commands_run(page: Path, programs: Programs, tmp_path: Path) -> None:
    """One folder for each page, in which its files lie and its commands run one after the other; what it installs goes to a folder of its own."""
    site = tmp_path / "site"
    work = tmp_path / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",  # stdout and stderr arrive as they were written
        "OMP_NUM_THREADS": "1",
        "RLEXP_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(site),
        "PIP_TARGET": str(site),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the other way round: 0 means no isolation
    }
    for name in FOREIGN:
        environment.pop(name, None)
    for block in blocks(page):
        if "file" in block.marks:
            path = work / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    for block in blocks(page):
        if block.is_shell and "no-run" not in block.marks:
            run_block(block, f"{page.name}:{block.line}", work, environment, programs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_do_not_run_here_are_valid(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compose and pass the check that every run begins with."""
    for rules in (validate_generation, vllm_server):
        monkeypatch.setattr(rules, "vllm_installed", lambda: True)
    for block in blocks(page):
        if block.is_shell and "no-run" in block.marks:
            for command, _ in block.commands():
                words = overrides_of(command)
                if words is not None:
                    assert composed(*words).loss.name, f"{page.name}:{block.line}: {command}"


def test_the_pages_are_found() -> None:
    assert ROOT / "README.md" in PAGES and len(RUNNABLE) >= 4
