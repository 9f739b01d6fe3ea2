"""config.yaml of a run folder: the resolved, typed config as plain YAML, read back as strictly as a command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlexp import plugins
from rlexp.config.convert import SCHEMA_KEY, checked_config, to_run_config
from rlexp.config.errors import UserError, listed
from rlexp.config.run import RunConfig

SCHEMA_VERSION = 1
"""Raised when keys of a saved file change their meaning or place"""


def config_text(config: RunConfig) -> str:
    """The whole config as YAML, in the order of the dataclasses."""
    return yaml.safe_dump({SCHEMA_KEY: SCHEMA_VERSION, **dataclasses.asdict(config)}, sort_keys=False, allow_unicode=True, width=120)


def save_config(config: RunConfig, path: Path | str) -> None:
    """Write the config; `load_config` gives an equal one back."""
    Path(path).write_text(config_text(config), encoding="utf-8")


def load_config(path: Path | str) -> RunConfig:
    """The config of a run folder's config.yaml. Registers the components it may name, so that any process can call it.

    Raises UserError for a file that is not such a config, was written by a newer rlexp, or holds unknown keys or wrong types.
    """
    data = read_sections(path)
    try:
        return to_run_config(data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_sections(path: Path | str) -> dict[str, Any]:
    """The sections of a saved config as plain dicts, not yet converted. Registers the components they may name."""
    from rlexp.components import register_all  # which imports this room's dataclasses

    register_all()
    plugins.load()
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a saved config: it should hold sections such as model and loss")
    version = data.get(SCHEMA_KEY, SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UserError(f"{path} has {SCHEMA_KEY} {version}, but this rlexp knows {SCHEMA_VERSION}: use the version that wrote it (status.json names it)")
    return data


def load_changed(path: Path | str, lines: Sequence[str]) -> RunConfig:
    """The config of a run folder with overrides as on a command line: `data.eval_size=500`, `data=files data.path=more.jsonl`.

    An option of a group brings that option's own values, whatever the run had there. Raises one UserError with all problems.
    """
    from rlexp.config.overrides import change  # imports Hydra, which ranks never do

    data = read_sections(path)
    problems = change(data, lines)
    if problems:
        raise UserError(listed(problems))
    return checked_config(data)
