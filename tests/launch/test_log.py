"""Messages of the package when their file cannot take them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rlexp.launch.log import logging_to


def test_a_line_that_no_longer_fits_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/full takes nothing: as a disk that is full."""
    with logging_to(Path("/dev/full"), console=True):
        logging.getLogger("rlexp.full").info("said on the console")
    assert capsys.readouterr().err == "said on the console\n"
