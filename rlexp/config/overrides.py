"""What is wrong with a command line that Hydra refused to compose.

Hydra stops at the first error and words it for those who know OmegaConf. Here the line is read again override by override: options
against the lists of their groups, values through the same strict conversion that every config passes. So all mistakes are found at
once, in one wording.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
from rlexp.config.hydra_versions import BASE
from rlexp.config.suggest import closest, did_you_mean
from rlexp.registry import conf_dir, publish

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


def _option_problem(group: str, option: Any, options: list[str]) -> str | None:
    """The message for an option that the group does not have, or None."""
    if option is None or str(option) in options:
        return None
    return f"{group}={option}: no such option{did_you_mean(closest(str(option), options))} ({group} has {', '.join(options)}){plugins.failure_hint()}"


def set_value(data: dict[str, Any], key: str, value: Any) -> None:
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
            set_value(data, key, value)  # type: ignore[arg-type]
        found += all_problems(data)[1]  # type: ignore[arg-type]
    return list(dict.fromkeys(found))


def _group_override(override: Override, options: list[str]) -> tuple[str, list[str]]:
    """A group's override with the first choice that exists ("" when none does), and its problems."""
    group, line = override.key_or_group, override.input_line or ""
    problems, good = [], []
    for _, value in _singles(override):
        found = [_option_problem(group, option, options) for option in (value if isinstance(value, list) else [value])]
        problems += [problem for problem in found if problem]
        if not any(found) and value is not None:
            good.append(f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value))
    if override.is_add():
        problems.append(f"{line}: leave out the +, the group has a choice already: {line.lstrip('+')}")
    return f"{group}={good[0]}" if good else "", problems


def command_line_problems(lines: Sequence[str], config_dir: str | None = None) -> list[str]:
    """Every problem of the overrides of a command line, or [] when none of them explains why it could not be composed.

    lines: the overrides as typed. config_dir: the folder given by --config-dir.
    """
    GlobalHydra.instance().clear()
    search = [f'hydra.searchpath=["file://{Path(config_dir).resolve()}"]'] if config_dir else []
    with initialize_config_dir(config_dir=str(conf_dir()), **BASE):
        loader = GlobalHydra.instance().config_loader()
        overrides, problems = _parse(lines, loader)
        composed, values = list(search), []
        for override in overrides:
            key = override.key_or_group
            if key.startswith("hydra") or override.is_delete() or override.package is not None:
                composed.append(override.input_line or "")
                continue
            options = [] if "." in key else loader.get_group_options(key, config_name=CONFIG_NAME, overrides=search)
            if options and not isinstance(override.value(), dict):
                line, found = _group_override(override, options)
                problems += found
                composed += [line] if line else []
            else:
                values.append(_singles(override))
        try:
            return problems + _value_problems(composed, values)
        except HydraException:
            return problems  # a file is at fault, not the command line


def change(data: dict[str, Any], lines: Sequence[str]) -> list[str]:
    """Apply overrides to the sections of a saved config, in place. Returns the problems of lines that cannot be applied.

    Options of groups come first and replace their whole section by what the option's file says; values at dotted keys follow.
    """
    GlobalHydra.instance().clear()
    publish()
    with initialize_config_dir(config_dir=str(conf_dir()), **BASE):
        loader = GlobalHydra.instance().config_loader()
        overrides, problems = _parse(lines, loader)
        values: list[tuple[str, Any]] = []
        for override in overrides:
            key, line = override.key_or_group, override.input_line or ""
            if override.is_sweep_override() or override.is_delete() or override.package is not None or key in ("experiment", "preset", "debug"):
                problems.append(f"{line} cannot be applied to a saved run: give single values, KEY=VALUE")
            elif (options := loader.get_group_options(key, config_name=CONFIG_NAME)) and not isinstance(override.value(), dict):
                chosen, found = _group_override(override, options)
                problems += found
                if chosen:
                    data[key] = OmegaConf.to_container(compose(CONFIG_NAME, overrides=["experiment=none", chosen])[key], resolve=True)
            else:
                values.append((key, override.value()))
    for key, value in values:
        set_value(data, key, value)
    return problems
