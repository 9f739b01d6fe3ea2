"""What Hydra needs before it composes conf/: the registered dataclasses, and interpolations for folder names of a sweep and its jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rlexp import registry
from rlexp.config.hydra_versions import register_resolver
from rlexp.config.names import job_name, sweep_name

_SWEEP = "RLEXP_SWEEP"
"""One sweep has one folder: its jobs, which are composed with other overrides, inherit the name through the environment."""


def _sweep(name: str | None, overrides: Sequence[str]) -> str:
    return os.environ.setdefault(_SWEEP, sweep_name(name, overrides))


def register() -> None:
    """Make `${rlexp.sweep:...}` and `${rlexp.job:...}` known to OmegaConf, and everything registered to Hydra; idempotent."""
    registry.publish()
    register_resolver("rlexp.sweep", _sweep)
    register_resolver("rlexp.job", job_name)
