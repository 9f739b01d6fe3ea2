"""What is wrong with a command line that Hydra refused to compose.

Hydra stops at the first error and words it for those who know OmegaConf. Here the line is read again override by override: options
against the lists of their groups, values through the same strict conversion that every config passes. So all mistakes are found at
once, in one wording.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from rlexp import plugins
from rlexp.config.convert import all_problems
from rlexp.config.suggest import closest, did_you_mean
from rlexp.registry import conf_dir

CONFIG_NAME = "config"


def _quoted(override: str) -> str:
    """The override with its value in quotes, as one shell word."""
    key, _, value = override.partition("=")
    return "'" + key + '="' + value.strip("\"'") + "\"'"


def _parse(lines: Sequence[str], loader: ConfigLoader) -> tuple[list[Override], list[str]]:
    """The overrides that can be read, and a problem for each that cannot."""
    parser, overrides, problems = OverridesParser.create(config_loader=loader), [], []
    for line in lines:
        try:
            overrides.extend(parser.parse_overrides([line]))
        except HydraException as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            hint = f"put a value with special characters in quotes: {_quoted(line)}" if "=" in line else f"write it as key=value, e.g. {line}=..."
            problems.append(f"{line} cannot be read ({reason}); {hint}")
    return overrides, problems


def _singles(override: Override) -> list[tuple[str, Any]]:
    """(key, value) of an override; of a sweep over several values, one for each."""
    key = override.key_or_group
    if not override.is_sweep_override():
        return [(key, override.value())]
    parser = OverridesParser.create()
    return [(key, parser.parse_override(f"{key}={value}").value()) for value in override.sweep_string_iterator()] if override.is_discrete_sweep() else []


def _option_problems(group: str, value: Any, loader: ConfigLoader, lines: list[str]) -> list[str]:
    """Options of a group that do not exist."""
    options = loader.get_group_options(group, config_name=CONFIG_NAME, overrides=lines)
    chosen = value if isinstance(value, list) else [value]
    return [
        f"{group}={option}: no such option{did_you_mean(closest(str(option), options))} ({group} has {', '.join(options)}){plugins.failure_hint()}"
        for option in chosen
        if option is not None and str(option) not in options
    ]


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key of nested dicts; what is in the way becomes a dict, for the conversion to complain about."""
    *path, last = key.split(".")
    for part in path:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[last] = {**data[last], **value} if isinstance(value, dict) and isinstance(data.get(last), dict) else value


def _value_problems(lines: list[str], values: list[list[tuple[str, Any]]]) -> list[str]:
    """Compose the groups alone, then convert with the values set: each value of a sweep in turn with the first ones of the others."""
    composed = OmegaConf.to_container(compose(CONFIG_NAME, overrides=lines), resolve=False)
    assert isinstance(composed, dict)
    firsts = [choices[0] for choices in values if choices]
    others = [[(key, value)] for choices in values for key, value in choices[1:]]
    found: list[str] = []
    for extra in [[], *others]:
        data = OmegaConf.to_container(OmegaConf.create(composed))
        assert isinstance(data, dict)
        for key, value in itertools.chain(firsts, extra):
            _set(data, key, value)  # type: ignore[arg-type]
        found += all_problems(data)[1]  # type: ignore[arg-type]
    return list(dict.fromkeys(found))


def _sort(overrides: list[Override], loader: ConfigLoader, lines: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Each override as ("group", line of one valid option or "", problems), ("value", "", choices) or ("other", line, None)."""
    groups = set(_all_groups(loader))
    for override in overrides:
        key, line = override.key_or_group, override.input_line or ""
        if key.startswith("hydra") or override.is_delete() or override.package is not None:
            yield "other", line, None
        elif key in groups and not isinstance(override.value(), dict):
            choices = _singles(override)
            wrong = [problem for _, value in choices for problem in _option_problems(key, value, loader, lines)]
            if override.is_add():
                wrong.append(f"{line}: leave out the +, the group has a choice already: {line.lstrip('+')}")
            good = [value for _, value in choices if not _option_problems(key, value, loader, lines)]
            text = f"[{','.join(map(str, good[0]))}]" if good and isinstance(good[0], list) else str(good[0]) if good else ""
            yield "group", f"{key}={text}" if good and good[0] is not None else "", wrong
        else:
            yield "value", "", _singles(override)


def _all_groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for name in loader.list_groups(parent):
        group = f"{parent}/{name}" if parent else name
        yield group
        yield from _all_groups(loader, group)


def command_line_problems(lines: Sequence[str], config_dir: str | None = None) -> list[str]:
    """Every problem of the overrides of a command line, or [] when none of them explains why it could not be composed.

    lines: the overrides as typed. config_dir: the folder given by --config-dir.
    """
    GlobalHydra.instance().clear()
    search = [f'hydra.searchpath=["file://{Path(config_dir).resolve()}"]'] if config_dir else []
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        overrides, problems = _parse(lines, loader)
        composed, values = list(search), []
        for kind, line, found in _sort(overrides, loader, search):
            if kind == "value":
                values.append(found)
            elif kind == "group":
                problems += found
                composed += [line] if line else []
            else:
                composed.append(line)
        try:
            return problems + _value_problems(composed, values)
        except HydraException:
            return problems  # a file is at fault, not the command line
