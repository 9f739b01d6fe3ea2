"""Composing configs in this process, and running rlexp-train in another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from train_program import run_train

from rlexp import resolvers
from rlexp.components import register_all
from rlexp.config.convert import to_run_config
from rlexp.config.hydra_versions import BASE
from rlexp.config.overrides import set_value
from rlexp.config.run import RunConfig
from rlexp.registry import conf_dir
from rlexp.train import main

Compose = Callable[..., RunConfig]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    register_all()
    resolvers.register()


@pytest.fixture(scope="session")
def compose_raw() -> Callable[..., DictConfig]:
    """Compose overrides as Hydra does, hydra's own node included on request."""

    @cache
    def run(*overrides: str, with_hydra: bool = False) -> DictConfig:
        with initialize_config_dir(config_dir=str(conf_dir()), **BASE):
            return compose("config", overrides=list(overrides), return_hydra_config=with_hydra)

    return run


@pytest.fixture(scope="session")
def compose_run(compose_raw: Callable[..., DictConfig]) -> Compose:
    """Compose overrides and convert them."""
    return lambda *overrides: to_run_config(compose_raw(*overrides))


@pytest.fixture(scope="session")
def quick_run(compose_raw: Callable[..., DictConfig]) -> Compose:
    """As compose_run, but only the choices of groups are composed; values are set in the result, which is much faster."""

    def run(*overrides: str) -> RunConfig:
        values = [override for override in overrides if "." in override.partition("=")[0]]
        data = OmegaConf.to_container(compose_raw(*(override for override in overrides if override not in values)))
        for override in OverridesParser.create().parse_overrides(values):
            set_value(data, override.key_or_group, override.value())
        return to_run_config(data)

    return run


@pytest.fixture(scope="session")
def train_command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run `rlexp-train ARGUMENTS` in a process and an empty folder of its own; it fails if torch gets imported."""

    def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_train(arguments, cwd or tmp_path_factory.mktemp("command"), environment)

    return run


@pytest.fixture
def train_main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run the program in this process and an empty folder: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("RLEXP_SWEEP", raising=False)
        monkeypatch.setattr(sys, "argv", ["rlexp-train", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run
