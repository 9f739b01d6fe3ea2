"""Runs mutants as forked processes of one pytest session: a plugin that takes the place of pytest's own loop over the tests."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from mutants import Mutant

APART = {"programs"}
"""fixtures of tests that start programs of their own, which would not have the error"""
RANKS = "multiprocessing"
"""what tests that spawn processes use"""

Judge = Callable[[pytest.Item], bool]


@dataclass
class Trial:
    """A mutant that is running in a child."""

    number: int
    pid: int
    pipe: int
    started: float


class Runner:
    """killed, total: how many; killed is None until the tests pass without any error."""

    def __init__(self, work: list[tuple[str, Mutant, Judge]], jobs: int, deadline: float | None) -> None:
        self.work, self.jobs, self.deadline = work, max(jobs, 1), deadline
        self.killed: int | None = None
        self.total = len(work)
        self.warm = False
        self._lines: dict[int, str] = {}
        self._printed = 0
        self._killers: dict[tuple[Path, int], list[str]] = {}
        """tests that killed mutants of a file, the latest first: they are run first"""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests once, run those of each mutant in a child of its own."""
        if session.testsfailed:
            return True
        items = [item for item in session.items if not self._apart(item)]
        modules = {mutant.path: _module(mutant.path) for _, mutant, _ in self.work}
        if self.warm:
            _warm()
        selected = [item for item in items if any(judges(item) for judges in {id(judges): judges for _, _, judges in self.work}.values())]
        seconds = self._control(selected, modules)
        if seconds is None:
            return True
        if self.deadline is None:
            self.deadline = 30 + 20 * sum(seconds.values())
        order = sorted(selected, key=lambda item: seconds[item.nodeid])
        chosen: dict[int, list[pytest.Item]] = {}
        for _, _, judges in self.work:
            if id(judges) not in chosen:
                chosen[id(judges)] = [item for item in order if judges(item)]
        self.killed = 0
        self._all(modules, chosen)
        return True

    @staticmethod
    def _apart(item: pytest.Item) -> bool:
        function = getattr(item, "function", None)
        return bool(APART & set(getattr(item, "fixturenames", ()))) or function is None or RANKS in mentioned(function)

    def _control(self, items: list[pytest.Item], modules: dict[Path, ModuleType]) -> dict[str, float] | None:
        """Seconds of each test with every module executed again from its unchanged source; None, with a message, if one fails."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for path, module in modules.items():
                execute(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module)
            _child(items, write, control=True)
        os.close(write)
        with os.fdopen(read) as answers:
            lines = answers.read().splitlines()
        os.waitpid(pid, 0)
        if len(lines) != len(items) or any(line.startswith("failed") for line in lines):
            print("the tests do not pass without any error:", *(line for line in lines if line.startswith("failed")), sep="\n  ")
            return None
        return {nodeid: float(took) for took, nodeid in (line.split(" ", 1) for line in lines)}

    def _all(self, modules: dict[Path, ModuleType], chosen: dict[int, list[pytest.Item]]) -> None:
        assert self.deadline is not None
        running: list[Trial] = []
        number = 0
        while number < self.total or running:
            while number < self.total and len(running) < self.jobs:
                running.append(self._start(number, modules, chosen))
                number += 1
            ready, _, _ = select.select([trial.pipe for trial in running], [], [], 0.2)
            for trial in list(running):
                late = time.monotonic() - trial.started > self.deadline
                if trial.pipe in ready or late:
                    running.remove(trial)
                    self._finish(trial, late and trial.pipe not in ready)

    def _start(self, number: int, modules: dict[Path, ModuleType], chosen: dict[int, list[pytest.Item]]) -> Trial:
        _, mutant, judges = self.work[number]
        before = self._killers.get((mutant.path, id(judges)), [])
        items = sorted(chosen[id(judges)], key=lambda item: before.index(item.nodeid) if item.nodeid in before else len(before))
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                execute(mutant.code, modules[mutant.path])
            except Exception as error:
                os.write(write, f"failed {type(error).__name__} when the module is executed".encode())
                os._exit(0)
            _child(items, write)
        os.close(write)
        return Trial(number, pid, read, time.monotonic())

    def _finish(self, trial: Trial, late: bool) -> None:
        """Note what became of a mutant, and print the lines that are next in order."""
        if late:
            os.kill(trial.pid, signal.SIGKILL)
        with os.fdopen(trial.pipe) as answer:
            said = "" if late else answer.read()
        _, status = os.waitpid(trial.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        unit, mutant, judges = self.work[trial.number]
        killer = "the deadline" if late else said.removeprefix("failed ") if said else f"exit code {code}" if code else ""
        killers = self._killers.setdefault((mutant.path, id(judges)), [])
        if killer in killers:
            killers.remove(killer)
        killers.insert(0, killer)
        assert self.killed is not None
        self.killed += bool(killer)
        self._lines[trial.number] = f"killed    {unit}  {mutant}  by {killer}" if killer else f"SURVIVED  {unit}  {mutant}"
        while self._printed in self._lines:
            print(self._lines[self._printed], flush=True)
            self._printed += 1


def mentioned(function: Any) -> set[Any]:
    """Names and constants in a function, and in those inside it."""
    found: set[Any] = set()
    codes = [inspect.unwrap(function).__code__]
    for code in codes:
        found |= set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                codes.append(constant)
            else:
                found |= set(constant) if isinstance(constant, (tuple, frozenset)) else {constant}
    return found


def _child(items: list[pytest.Item], write: int, control: bool = False) -> None:
    """Run tests until one fails and say which; in the control run, run all and say how long each took. Does not return."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(quiet, number)
    code = 0
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            started = time.monotonic()
            failed = any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))
            if failed or control:
                os.write(write, (f"failed {item.nodeid}" if failed else f"{time.monotonic() - started:.4f} {item.nodeid}\n").encode())
            if failed and not control:
                break
    except BaseException:
        code = 3
    os._exit(code)


def _module(path: Path) -> ModuleType:
    """The imported module of a file."""
    for module in list(sys.modules.values()):
        with contextlib.suppress(OSError, TypeError):
            if Path(getattr(module, "__file__", None) or os.devnull).resolve() == path:
                return module
    for folder in sys.path:
        if folder and Path(folder).resolve() in path.parents:
            return importlib.import_module(".".join(path.relative_to(Path(folder).resolve()).with_suffix("").parts))
    raise SystemExit(f"{path} cannot be imported: no folder on sys.path holds it")


def _warm() -> None:
    """Fill the caches of composed configs once instead of in each child; nothing with a gradient, which a fork would not survive."""
    batches, product = importlib.import_module("loss_batches"), importlib.import_module("loss_product")
    batches.loss_config("gspo")
    for name in batches.LOSS_NAMES:
        product.converted(name, product.OWN)


def execute(code: CodeType, module: ModuleType) -> None:
    """Execute a module again in place: whoever imported a function or constant of it gets the new one; classes keep their identity."""
    before = dict(vars(module))
    exec(code, vars(module))
    for name, old in before.items():
        new = vars(module).get(name)
        if new is old or name.startswith("__"):
            continue
        if isinstance(old, type) and isinstance(new, type) and old.__module__ == module.__name__:
            _renew(old, new)
            setattr(module, name, old)
            continue
        for other in list(sys.modules.values()):
            names = vars(other) if isinstance(other, ModuleType) else {}
            if names.get(name) is old:
                names[name] = new


def _renew(old: type, new: type) -> None:
    """Give a class the attributes of its new version."""
    for name, value in vars(new).items():
        if name in ("__dict__", "__weakref__"):
            continue
        for function in _functions(value):
            for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if variable == "__class__":
                    cell.cell_contents = old  # what super() without arguments means
        setattr(old, name, value)


def _functions(value: Any) -> list[FunctionType]:
    """The plain functions behind an attribute of a class."""
    found = [inspect.unwrap(getattr(value, part)) for part in ("__func__", "fget") if getattr(value, part, None) is not None]
    return [x for x in (*found, inspect.unwrap(value) if callable(value) else None) if isinstance(x, FunctionType)]
