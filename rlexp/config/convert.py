"""One strict way from a composed config, a saved file or a plain dict to a typed RunConfig.

Hydra types a command line while it composes, but accepts any `+key=value` and loses the types of a saved file; therefore everything
passes here. Each section is read as the dataclass its `name` is registered for, unknown keys are refused with the key that was
probably meant, and all problems are found in one pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlexp import plugins
from rlexp.config import suggest, validate
from rlexp.config.errors import UserError, listed
from rlexp.config.fields import REQUIRED
from rlexp.config.run import RunConfig
from rlexp.config.values import WrongType, convert_value
from rlexp.registry import REGISTRIES, Registry, RegistryError

SCHEMA_KEY = "schema_version"
"""Key of a saved file beside the sections; it says which version of the sections the file holds."""


def plain(source: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The config as nested dicts and lists with interpolations resolved. Raises UserError naming a key that cannot be."""
    if not isinstance(source, DictConfig):
        return dict(source)
    try:
        data = OmegaConf.to_container(source, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _component(registry: Registry, data: Any, key: str, problems: list[str]) -> Any:
    """One section whose dataclass its `name` decides; None when that is impossible."""
    if not isinstance(data, Mapping) or data.get("name", REQUIRED) == REQUIRED:
        choose = f"{key}.name" if registry.multi else f"{registry.group}=OPTION"
        problems.append(f"{key}: choose one of {', '.join(registry.names())} by {choose}")
        if isinstance(data, Mapping):
            known = {field.name for name in registry.names() for field in dataclasses.fields(registry.config_for(name))}
            problems.extend(suggest.unknown_key(f"{key}.{name}", known) for name in data if name not in known)
        return None
    try:
        config = registry.config_for(str(data["name"]))
    except RegistryError as error:
        problems.append(f"{key}.name={data['name']}: {error}{plugins.failure_hint()}")
        return None
    return _section(config, data, f"{key}.", problems)


def _terms(registry: Registry, data: Any, key: str, problems: list[str]) -> dict[str, Any]:
    """Several components of one group, by the user's own keys."""
    if not isinstance(data, Mapping):
        problems.append(f"{key}={data!r} must be a dict of terms, e.g. {registry.group}=[{registry.names()[0]}]")
        return {}
    terms = {str(name): _component(registry, item, f"{key}.{name}", problems) for name, item in data.items() if item is not None}
    return {name: term for name, term in terms.items() if term is not None}


def _leaf(field: dataclasses.Field, hint: Any, value: Any, key: str, problems: list[str]) -> Any:
    """One typed value, or None after noting the problem."""
    if isinstance(value, str) and value == REQUIRED:
        return REQUIRED  # named by validation, with the field's documentation
    aliases = field.metadata.get("aliases") or {}
    if isinstance(value, (str, bool)) and str(value).lower() in aliases:
        return aliases[str(value).lower()]
    try:
        return convert_value(value, hint)
    except WrongType as error:
        problems.append(
            f"{key}={value!r} has the wrong type: it must be {error}" if isinstance(value, str) else f"{key}={value} has the wrong type: it must be {error}"
        )
        return None


def _section(config: type, data: Any, prefix: str, problems: list[str]) -> Any:
    """A section read as the dataclass `config`; a field with a problem is None, and the problem is noted."""
    if not isinstance(data, Mapping):
        problems.append(f"{prefix[:-1]}={data!r} must be a section of keys, not a single value")
        return config()
    fields = {field.name: field for field in dataclasses.fields(config)}
    problems.extend(suggest.unknown_key(f"{prefix}{key}", fields) for key in data if key not in fields)
    hints = get_type_hints(config)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name not in data:
            continue
        key = f"{prefix}{name}"
        if name == "terms" and prefix[:-1] in REGISTRIES and REGISTRIES[prefix[:-1]].multi:
            values[name] = _terms(REGISTRIES[prefix[:-1]], data[name], key, problems)
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = _section(hints[name], data[name], f"{key}.", problems)
        else:
            values[name] = _leaf(field, hints[name], data[name], key, problems)
    return config(**values)


def convert(source: DictConfig | Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """The typed config and every unknown key, unknown name and wrong type in it, one sentence each.

    With problems the config is incomplete (a section that could not be read is MISSING) and serves only to look for more.
    """
    data, problems = plain(source), []  # type: tuple[dict[str, Any], list[str]]
    data.pop(SCHEMA_KEY, None)
    hints = get_type_hints(RunConfig)
    problems.extend(suggest.unknown_key(key, hints) for key in data if key not in hints)
    values: dict[str, Any] = {}
    for name in hints:
        registry = REGISTRIES.get(name)
        if registry is not None and not registry.multi:
            section = _component(registry, data.get(name), name, problems)
            if section is not None:
                values[name] = section
        elif name in data:
            values[name] = _section(hints[name], data[name], f"{name}.", problems)
    return RunConfig(**values), problems


def to_run_config(source: DictConfig | Mapping[str, Any]) -> RunConfig:
    """The typed config. Raises UserError that lists every unknown key, unknown name and wrong type."""
    config, problems = convert(source)
    if problems:
        raise UserError(listed(problems))
    return config


def all_problems(source: DictConfig | Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """The typed config and everything wrong with it: keys, names, types and bounds, and (once those are right) combinations."""
    config, problems = convert(source)
    if problems:
        return config, problems + validate.bounds(config)
    return config, validate.problems(config)


def checked_config(source: DictConfig | Mapping[str, Any]) -> RunConfig:
    """The typed and validated config. Raises one UserError that lists every problem with its key and the fix."""
    config, problems = all_problems(source)
    if problems:
        raise UserError(listed(problems))
    return config
