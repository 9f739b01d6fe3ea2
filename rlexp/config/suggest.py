"""What a mistyped key or name was meant to be."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from functools import cache

from rlexp import registry
from rlexp.config.run import RunConfig


def closest(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known words that `word` resembles, best first."""
    return difflib.get_close_matches(word, list(known), most, cutoff=0.5)


def did_you_mean(words: list[str]) -> str:
    """`; did you mean a or b?`, or nothing."""
    return f"; did you mean {' or '.join(words)}?" if words else ""


def _keys_of(config: type, prefix: str) -> Iterable[tuple[str, str]]:
    return ((f"{prefix}{field.name}", field.name) for field in dataclasses.fields(config))


@cache
def _sections() -> dict[str, dict[str, type]]:
    """Group -> option name -> dataclass; groups without a registry have one unnamed option."""
    sections: dict[str, dict[str, type]] = {}
    for field in dataclasses.fields(RunConfig):
        if field.default_factory is not dataclasses.MISSING:
            sections[field.name] = {"": field.default_factory}  # type: ignore[dict-item]
    for group, known in registry.REGISTRIES.items():
        if not known.multi:
            sections[group] = {name: known.config_for(name) for name in known.names()}
    return sections


def unknown_key(key: str, siblings: Iterable[str]) -> str:
    """The message for a key that does not exist.

    key: the full dotted key. siblings: the names that exist in its section. Looks for a near miss among the siblings, then for the
    option of the group that has the key, then for the same key in another section.
    """
    prefix, _, name = key.rpartition(".")
    siblings = sorted(siblings)
    near = closest(name, siblings)
    sections = _sections()
    owners = [option for option, config in sections.get(prefix, {}).items() if option and any(n == name for _, n in _keys_of(config, ""))]
    if owners and name not in siblings:
        return f"{key}: only {prefix}={' or '.join(owners)} has this key{did_you_mean([f'{prefix}.{word}' for word in near])}"
    if near:
        return f"{key}: unknown key{did_you_mean([f'{prefix}.{word}' if prefix else word for word in near])}"
    elsewhere = sorted({full for group, options in sections.items() for config in options.values() for full, n in _keys_of(config, f"{group}.") if n == name})
    if elsewhere:
        return f"{key}: unknown key{did_you_mean(elsewhere[:3])}"
    return f"{key}: unknown key; {prefix or 'the top level'} has {', '.join(siblings)}"
