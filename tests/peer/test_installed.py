"""The one test of this folder that is there without TRL."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

REASON = "trl is not installed: the comparison with it is `make test-peer`, which installs the extra `peer`"


def test_the_peer_is_the_version_that_the_pages_are_about() -> None:
    """Without trl this is skipped and nothing else of the folder is collected (conftest.py)."""
    if importlib.util.find_spec("trl") is None:
        pytest.skip(REASON)
    assert importlib.metadata.version("trl") == "1.16.0"
