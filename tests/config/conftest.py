"""Composing configs in this process, and running rlexp-train in another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from rlexp import resolvers
from rlexp.components import register_all
from rlexp.config.convert import to_run_config
from rlexp.config.run import RunConfig
from rlexp.registry import conf_dir

Compose = Callable[..., RunConfig]
Command = Callable[..., subprocess.CompletedProcess[str]]

_MAIN = """
import sys
sys.argv[0] = "rlexp-train"
from rlexp.train import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    register_all()
    resolvers.register()


@pytest.fixture(scope="session")
def compose_raw() -> Callable[..., DictConfig]:
    """Compose overrides as Hydra does, hydra's own node included on request."""

    def run(*overrides: str, with_hydra: bool = False) -> DictConfig:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            return compose("config", overrides=list(overrides), return_hydra_config=with_hydra)

    return run


@pytest.fixture(scope="session")
def compose_run(compose_raw: Callable[..., DictConfig]) -> Compose:
    """Compose overrides and convert them."""
    return lambda *overrides: to_run_config(compose_raw(*overrides))


@pytest.fixture(scope="session")
def train_command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run `rlexp-train ARGUMENTS` in a process and an empty folder of its own; it fails if torch gets imported."""

    def run(*arguments: str, cwd: Path | None = None, **environment: Any) -> subprocess.CompletedProcess[str]:
        folder = cwd or tmp_path_factory.mktemp("command")
        return subprocess.run(
            [sys.executable, "-c", _MAIN, *arguments], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
        )

    return run
