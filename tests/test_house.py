"""The rules of the house: imports go down only, files and functions stay small, configuring imports nothing heavy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rlexp"
FLOORS = {
    1: ("records", "registry", "plugins", "components", "resolvers", "config"),
    2: ("batching", "losses", "advantages", "distributed", "tracking"),
    3: ("generation", "chat", "models", "rewards", "environments", "data"),
    4: ("algorithms", "rollout"),
    5: ("build", "launch", "training", "reports", "planning"),
    6: ("train", "evaluate", "sweep", "report", "plan"),
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
SOURCES = sorted(PACKAGE.rglob("*.py")) + sorted((ROOT / "hydra_plugins").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST, module_level: bool = False) -> Iterator[str]:
    nodes = ast.walk(tree) if not module_level else (node for node in getattr(tree, "body", []))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.is_relative_to(PACKAGE)], ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    floor = FLOOR_OF[room]
    for name in imports_of(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "rlexp" or len(parts) < 2 or parts[1] not in FLOOR_OF:
            continue
        other = FLOOR_OF[parts[1]]
        allowed = other < floor or parts[1] == room or room == "build" or floor == other == 1
        if room == "launch" and parts[1] == "build":
            allowed = True  # a rank process ends in build.run
        assert allowed, f"{path.relative_to(ROOT)} (floor {floor}) imports {name} (floor {other})"


def test_no_import_cycle_between_rooms() -> None:
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        if path.is_relative_to(PACKAGE) and room_of(path) != "__init__":
            names = (name.split(".") for name in imports_of(ast.parse(path.read_text()), module_level=True))
            graph.setdefault(room_of(path), set()).update(parts[1] for parts in names if parts[0] == "rlexp" and len(parts) > 1 and parts[1] in FLOOR_OF)

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        return any(room == goal or (room not in seen and reaches(room, goal, seen | {room})) for room in graph.get(start, set()) - {start})

    assert [room for room in graph if reaches(room, room, {room})] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_small_rooms(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    tree = ast.parse(text)
    assert ast.get_docstring(tree) is not None or not text.strip()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}:{node.lineno} {node.name} is longer than 60 lines"


def test_programs_are_thin() -> None:
    for name in FLOORS[6]:
        assert (PACKAGE / f"{name}.py").read_text().count("\n") < 80, name


@pytest.mark.parametrize(
    "module",
    [
        "rlexp.train",
        "rlexp.sweep",
        "rlexp.report",
        "rlexp.plan",
        "rlexp.components",
        "rlexp.plugins",
        "rlexp.config.validate",
        "rlexp.records.rollout",
        "rlexp.reports.html",
    ],
)
def test_configuring_imports_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; heavy = {{'torch', 'transformers', 'vllm', 'datasets', 'accelerate'}} & set(sys.modules); sys.exit(', '.join(heavy) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_ranks_do_not_import_hydra(tmp_path: Path) -> None:
    """What a rank's process does before it trains: read the typed config from disk, with all components registered."""
    from run_configs import composed

    from rlexp.config.saved import save_config

    save_config(composed("experiment=addition"), tmp_path / "config.yaml")
    code = f"""
import sys
import rlexp.launch.worker
from rlexp.build import build, run
from rlexp.config.saved import load_config
load_config({str(tmp_path / "config.yaml")!r})
sys.exit(", ".join(name for name in sys.modules if name.partition(".")[0] in ("hydra", "hydra_plugins")) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_nothing_names_this_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT).stdout.split("\n")
    pattern = re.compile(r"/(work|farm|tmp/studio)/|/root/\.")
    for name in tracked:
        path = ROOT / name
        if (
            path.is_file()
            and path.suffix in (".py", ".md", ".yaml", ".toml", ".sh", "")
            and path.stat().st_size < 1_000_000
            and path != Path(__file__).resolve()
        ):
            text = path.read_text(errors="ignore")
            assert not pattern.search(text), name
