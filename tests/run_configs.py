"""Composed and validated configs for tests, without the command line."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir

from rlexp import plugins, resolvers
from rlexp.components import register_all
from rlexp.config.convert import checked_config
from rlexp.config.run import RunConfig
from rlexp.registry import conf_dir


def composed(*overrides: str) -> RunConfig:
    """The config that `python -m rlexp.train OVERRIDES` runs; a copy of one's own."""
    return copy.deepcopy(_composed(*overrides))


@cache
def _composed(*overrides: str) -> RunConfig:
    register_all()
    plugins.install()
    resolvers.register()
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        return checked_config(compose("config", overrides=list(overrides)))


def default_with(**values: Any) -> RunConfig:
    """The default config with some values set, without composing it again: default_with(run__name="x") sets run.name."""
    config = composed()
    for key, value in values.items():
        *path, last = key.split("__")
        section: Any = config
        for part in path:
            section = getattr(section, part)
        assert hasattr(section, last), key
        setattr(section, last, value)
    return config
