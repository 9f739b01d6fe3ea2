"""What a run's config changes: every key whose value is not the default of its dataclass, and every option not chosen by default."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import yaml

from rlexp import registry
from rlexp.config.fields import REQUIRED, walk
from rlexp.config.run import RunConfig


@cache
def default_options() -> dict[str, Any]:
    """Group -> the option that config.yaml chooses."""
    text = yaml.safe_load((registry.conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    return {group: option for item in text["defaults"] if isinstance(item, dict) for group, option in item.items() if " " not in group}


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default == REQUIRED else field.default


def differences(config: RunConfig) -> list[tuple[str, Any, Any]]:
    """(key, value, default) in the order of the config; first, per group, the option itself when it is another one.

    The default of an option's key is that of its dataclass; REQUIRED keys have None.
    """
    rows: list[tuple[str, Any, Any]] = []
    chosen = default_options()
    for group, known in registry.REGISTRIES.items():
        section = getattr(config, group)
        option: Any = list(section.terms) if known.multi else section.name
        default = chosen[group]
        default = ([] if default == "none" else [default] if isinstance(default, str) else default) if known.multi else default
        if option != default:
            rows.append((group, option, default))
    for key, field, value in walk(config):
        if field.name == "name" and key.partition(".")[0] in registry.REGISTRIES:
            continue  # the rows of options above say it
        if key in ("run.dry", "reward.terms", "tracker.terms"):
            continue
        if value != _default(field):
            rows.append((key, value, _default(field)))
    return rows
