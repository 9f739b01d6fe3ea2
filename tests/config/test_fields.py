"""Every field of every dataclass: a wrong type, a value beyond each bound and an unknown choice give one message with the full key."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from rlexp import registry
from rlexp.components import register_all
from rlexp.config.convert import all_problems, convert
from rlexp.config.differences import default_options
from rlexp.config.fields import REQUIRED
from rlexp.config.overrides import command_line_problems
from rlexp.config.run import RunConfig

register_all()


def _base() -> dict[str, Any]:
    """The default options as the plain dict of a saved file."""
    data: dict[str, Any] = {}
    for group, known in registry.REGISTRIES.items():
        option = default_options()[group]
        data[group] = {"terms": {}} if known.multi else {"name": option}
    data["reward"]["terms"]["exact_match"] = {"name": "exact_match"}
    return data


def _sections() -> Iterator[tuple[str, str, type]]:
    """(dotted prefix, option, dataclass) of every section of every option."""
    for field in dataclasses.fields(RunConfig):
        if field.default_factory is not dataclasses.MISSING:
            yield field.name, "", field.default_factory
    for group, known in registry.REGISTRIES.items():
        for name in known.names():
            yield f"{group}.terms.{name}" if known.multi else group, name, known.config_for(name)


FIELDS = [
    pytest.param(prefix, option, config, field, id=f"{prefix}.{field.name}[{option}]")
    for prefix, option, config in _sections()
    for field in dataclasses.fields(config)
    if field.name not in ("terms",) and not (field.name == "name" and option)
]


def _with(prefix: str, option: str, config: type, name: str, value: Any) -> dict[str, Any]:
    """The default config with one key set in one section; keys that the option requires are filled."""
    data = _base()
    section = data
    for part in prefix.split("."):
        section = section.setdefault(part, {})
    if option:
        section["name"] = option
        section.update({field.name: "x" for field in dataclasses.fields(config) if field.default == REQUIRED and field.name != "name"})
    section[name] = value
    return data


def _wrong_type(hint: Any) -> Any:
    """A value that the annotation cannot hold."""
    if get_origin(hint) is typing.Union:
        hint = next(argument for argument in get_args(hint) if argument is not type(None))
    if get_origin(hint) is list:
        return {"a": 1}
    if get_origin(hint) is dict or hint is str:
        return [1]
    return "[" if hint is Any else "abc"


def _outside(field: dataclasses.Field, hint: Any) -> Iterator[tuple[Any, str]]:
    """Values beyond each bound, with the part of the rule that the message must state."""
    whole = hint is int or int in get_args(hint)
    small = 1 if whole else 1e-3
    for bound, symbol, value in (("ge", ">=", -small), ("gt", ">", 0), ("le", "<=", small), ("lt", "<", 0)):
        limit = field.metadata.get(bound)
        if limit is not None:
            yield (int if whole else float)(limit + value), f"{symbol} {limit:g}"
    if field.metadata.get("choices"):
        yield "no_such_choice", f"one of {', '.join(field.metadata['choices'])}"


@pytest.mark.parametrize(("prefix", "option", "config", "field"), FIELDS)
@pytest.mark.rows("GRPO-261", "GRPO-262")
def test_one_message_with_the_full_key(prefix, option, config, field):
    hint = get_type_hints(config)[field.name]
    key = f"{prefix}.{field.name}"
    wrong = _wrong_type(hint)
    _, problems = all_problems(_with(prefix, option, config, field.name, wrong))
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"{key}={wrong!r} has the wrong type: it must be ")
    for value, rule in _outside(field, hint):
        given = [value] if get_origin(hint) is list else value
        _, problems = all_problems(_with(prefix, option, config, field.name, given))
        assert len(problems) == 1, problems
        assert problems[0].startswith(f"{key}={given} is out of range: it must be ")
        assert rule in problems[0]


@pytest.mark.parametrize(("prefix", "option", "config", "field"), FIELDS)
def test_a_misspelt_key_is_refused_with_the_right_one(prefix, option, config, field):
    key = f"{prefix}.{field.name}"
    _, problems = convert(_with(prefix, option, config, f"{field.name}x", 1))
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"{key}x: unknown key; did you mean {key}") or f" or {key}" in problems[0]


def test_bounds_are_inclusive_or_not_as_stated():
    def ok(section: str, key: str, value: Any) -> bool:
        return not all_problems({**_base(), section: {**_base().get(section, {}), key: value}})[1]

    assert ok("generation", "top_p", 1.0) and not ok("generation", "top_p", 0.0)
    assert ok("generation", "min_p", 0.0) and ok("generation", "min_p", 1.0)
    assert ok("loss", "epsilon", 0.0) and not ok("loss", "epsilon", -0.1)
    assert ok("algorithm", "num_generations", 2) and not ok("algorithm", "num_generations", 1)
    assert ok("evaluation", "temperature", 0.0) and not ok("generation", "temperature", 0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), "nan", "inf", True])
def test_a_float_is_a_finite_number(value):
    _, problems = all_problems(_with("optimizer", "adamw", registry.OPTIMIZERS.config_for("adamw"), "learning_rate", value))
    assert problems == [f"optimizer.learning_rate={value!r} has the wrong type: it must be a number"]


def test_a_command_line_with_every_value_wrong_names_every_key(compose_run):
    """Hydra itself stops at the first of these."""
    config = compose_run()
    lines = []
    for prefix, option, dataclass in _sections():
        group = prefix.split(".")[0]
        if option and option not in (getattr(config, group).name if hasattr(getattr(config, group), "name") else config.reward.terms):
            continue
        hints = get_type_hints(dataclass)
        for field in dataclasses.fields(dataclass):
            if field.name not in ("terms", "name"):
                value = {"abc": "abc", "[": "'['"}.get(str(_wrong_type(hints[field.name])), "[1]")
                lines.append(f"{prefix}.{field.name}=" + ("{a: 1}" if "List" in str(hints[field.name]) else value))
    lines = [line for line in lines if line.partition("=")[0].split(".")[0] not in ("tracker",) or "terms" not in line]
    problems = command_line_problems(lines)
    keys = [line.partition("=")[0] for line in lines]
    assert len(keys) > 60
    assert [problem for problem in problems if not any(problem.startswith(f"{key}=") for key in keys)] == []
    assert [key for key in keys if not any(problem.startswith(f"{key}=") for problem in problems)] == []
