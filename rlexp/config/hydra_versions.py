"""What differs between the supported Hydra lines, 1.3 and 1.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import OmegaConf

_OLD = tuple(int(part) for part in hydra.__version__.split(".")[:2]) < (1, 4)

BASE: dict[str, Any] = {"version_base": "1.3"} if _OLD else {}
"""Keywords for hydra.main and initialize_config_dir: 1.4 deprecates version_base"""


def register_resolver(name: str, function: Callable[..., Any]) -> None:
    """Make `${name:...}` known to OmegaConf; idempotent. The new function's name was an older API's before 2.4."""
    register = OmegaConf.register_new_resolver if _OLD else OmegaConf.register_resolver
    register(name, function, replace=True)  # type: ignore[call-arg, unused-ignore]
