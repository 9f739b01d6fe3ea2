"""Conversion of one plain value (from YAML, JSON or a command line) to the type of its field."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
_TRUE, _FALSE = {"true", "yes", "on", "y", "1"}, {"false", "no", "off", "n", "0"}


class WrongType(ValueError):
    """A value that its field cannot hold; the text says what the field wants."""


def _bool(value: Any) -> bool:
    word = str(value).lower()
    if isinstance(value, (bool, int, str)) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise WrongType("true or false")


def _int(value: Any) -> int:
    try:
        if type(value) in (int, str):
            return int(value)
    except ValueError:
        pass
    raise WrongType("a whole number")


def _float(value: Any) -> float:
    try:
        number = float(value) if type(value) in (int, float, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise WrongType("a number")
    return number


def _str(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return str(value)
    raise WrongType("text")


def _free_form(value: Any) -> dict[str, Any]:
    """A section whose keys belong to another library: a dict, or the same as a JSON string.

    YAML reads 1e-1 as text where Hydra and JSON read a number; here it is a number whichever way it came in.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise WrongType(f"a dict or a JSON string of one ({error})") from None
    if not isinstance(value, Mapping):
        raise WrongType("a dict or a JSON string of one")
    return {str(key): float(item) if isinstance(item, str) and _EXPONENT.fullmatch(item) else item for key, item in value.items()}


def convert_value(value: Any, hint: Any) -> Any:
    """The value as the annotated type of a config field.

    hint: bool, int, float, str, Any (free-form dict or its JSON text), Optional, List or Dict of these. Raises WrongType. The rules are
    those of OmegaConf (a number may come as text, a bool as yes or no, an int is a float), so a saved file and a command line agree;
    infinities and NaN are refused.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        if value is None:
            return None
        try:
            return convert_value(value, inner)
        except WrongType as error:
            raise WrongType(f"{error}, or null") from None
    if hint is Any:
        return None if value is None else _free_form(value)
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise WrongType("a list, e.g. [a, b]")
        return [convert_value(item, arguments[0]) for item in value]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise WrongType("a dict, e.g. {key: value}")
        return {str(key): item if arguments[1] is Any else convert_value(item, arguments[1]) for key, item in value.items()}
    return {bool: _bool, int: _int, float: _float, str: _str}[hint](value)


def text_of(value: Any) -> str:
    """A value as it reads in YAML and on a command line."""
    if isinstance(value, str):
        return value if value and value == value.strip() else json.dumps(value)
    return json.dumps(value) if isinstance(value, (list, dict, bool)) or value is None else str(value)
