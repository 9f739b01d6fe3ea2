"""The size of the tested product of losses, ratios, corrections and masks, at the end of the output."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Written from the test's recorded property, so that it also comes from a worker process."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "matrix" and report.when == "call":
                terminalreporter.write_line(f"matrix: {value}")
