"""Both local backends, for the tests of what they share."""

from __future__ import annotations

import pytest
from local_generators import BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Name of a local backend."""
    return request.param
