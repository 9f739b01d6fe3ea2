"""One Slurm for all tests that need it, and the seconds they took."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator

import pytest
from slurm_here import Slurm

_lines: list[str] = []


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """The daemons. Skips where they are not installed, which .ci/run does not allow."""
    if shutil.which("slurmctld") is None or shutil.which("slurmd") is None:
        pytest.skip("Slurm is not installed: apt-get install -y --no-install-recommends slurmctld slurmd slurm-client")
    if os.geteuid() != 0:
        pytest.skip("starting Slurm's daemons needs root")
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    yield made
    made.down()


@pytest.fixture
def tell() -> Callable[[str], None]:
    """Add a line with the seconds since the test began to the summary at the end."""
    began = time.monotonic()

    def line(text: str) -> None:
        _lines.append(f"slurm: {text}: {time.monotonic() - began:.1f} s")

    return line


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The summary."""
    for line in _lines:
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of minutes run when they are asked for: RLEXP_SLOW=1."""
    if "RLEXP_SLOW" not in os.environ:
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
