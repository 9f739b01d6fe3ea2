"""The size of the tested product of losses, ratios, corrections and masks, at the end of the output."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Added up from the recorded properties of the tests, so that they also come from worker processes."""
    parts = [
        value for report in terminalreporter.stats.get("passed", []) if report.when == "call" for name, value in report.user_properties if name == "matrix"
    ]
    if parts:
        allowed, refused = (sum(part[number] for part in parts) for number in (0, 1))
        if allowed + refused == parts[0][2]:
            terminalreporter.write_line(f"matrix: {allowed} allowed, {refused} refused (each by a named rule), {allowed + refused} = product")
        else:
            terminalreporter.write_line(f"matrix: {allowed} allowed, {refused} refused, of {parts[0][2]}: some of the losses did not run or failed")
