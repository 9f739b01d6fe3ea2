"""docs/from_trl.md names every field of TRL's configs and every argument of its trainers, and what it calls the same has the same default."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from rlexp.components import register_all
from rlexp.config.fields import REQUIRED
from rlexp.config.run import RunConfig
from rlexp.registry import REGISTRIES

PAGE = Path(__file__).parents[2] / "docs" / "from_trl.md"
CONFIGS = {"GRPOConfig": GRPOConfig, "RLOOConfig": RLOOConfig, "SDPOConfig": SDPOConfig}
TRAINERS = (GRPOTrainer, RLOOTrainer, SDPOTrainer)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table of the page."""

    config: str
    """the config whose fields the table is about"""
    fields: tuple[str, ...]
    text: str
    """the second column"""

    @property
    def same(self) -> bool:
        """Whether the page says that values, meaning and default are the same."""
        return re.search(r"`, same\b|^the same keys? of `", self.text) is not None

    @property
    def keys(self) -> list[str]:
        """Our keys, written out or as "the same keys of `group`"."""
        if match := re.fullmatch(r"the same keys? of `(\w+)`", self.text):
            return [f"{match[1]}.{field}" for field in self.fields]
        return re.findall(r"`([a-z_]+\.[a-z_.]+)`", self.text)


@cache
def rows() -> list[Row]:
    """All rows whose first column names fields. A table's head says which config it is about; TRL is GRPOConfig."""
    found, config = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if len(cells) != 2:
            continue
        if cells[0].startswith("TRL"):
            config = cells[0].removeprefix("TRL").strip(" ()") or "GRPOConfig"
        elif fields := re.findall(r"`(\w+)`", cells[0]):
            found.append(Row(config, tuple(fields), cells[1]))
    return found


def fields_of(config: type[Any]) -> dict[str, Any]:
    """Field -> default."""
    return {field.name: field.default for field in dataclasses.fields(config)}


def arguments() -> set[str]:
    """What their trainers are called with."""
    return {name for trainer in TRAINERS for name in inspect.signature(trainer.__init__).parameters} - {"self", "args"}


@pytest.mark.parametrize("config", CONFIGS)
def test_no_field_is_missing(config: str) -> None:
    general = {field for row in rows() if row.config == "GRPOConfig" for field in row.fields}
    own = {field for row in rows() if row.config == config for field in row.fields}
    assert sorted(set(fields_of(CONFIGS[config])) - general - own) == []


def test_no_argument_of_a_trainer_is_missing() -> None:
    assert sorted(arguments() - {field for row in rows() for field in row.fields}) == []


def test_no_field_is_made_up() -> None:
    real = {name: set(fields_of(config)) | arguments() for name, config in CONFIGS.items()}
    assert [(row.config, field) for row in rows() for field in row.fields if field not in real[row.config]] == []


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_that_differs_from_grpo_has_a_row_of_its_own(config: str) -> None:
    """A default under the same name that is another one in RLOOConfig or SDPOConfig."""
    grpo, own = fields_of(GRPOConfig), {field for row in rows() if row.config == config for field in row.fields}
    differs = {name for name, default in fields_of(CONFIGS[config]).items() if name in grpo and str(default) != str(grpo[name])}
    assert sorted(differs - own) == []


def our_default(key: str, config: str) -> Any:
    """The default of a key; of a group with options, that of the option which goes with the config, else of any that has the key."""
    register_all()
    group, name = key.split(".", 1)
    preferred = {"algorithm": "rloo" if config == "RLOOConfig" else "grpo", "loss": "rloo" if config == "RLOOConfig" else "dapo"}
    if group not in REGISTRIES:
        sections = {field.name: field.type for field in dataclasses.fields(RunConfig)}
        assert group in sections, key
        return fields_of(type(getattr(RunConfig(), group)))[name]
    registry = REGISTRIES[group]
    names = sorted(registry.names(), key=lambda option: option != preferred.get(group))
    defaults = [fields_of(registry.config_for(option)) for option in names]
    found = [each[name] for each in defaults if name in each]
    assert found, key
    return found[0]


SAME = [(row.config, field, key) for row in rows() if row.same and len(row.keys) == len(row.fields) for field, key in zip(row.fields, row.keys, strict=True)]


def test_many_are_called_the_same() -> None:
    assert len(SAME) > 50


@pytest.mark.parametrize(("config", "field", "key"), SAME)
def test_what_is_called_the_same_has_the_same_default(config: str, field: str, key: str) -> None:
    theirs, mine = fields_of(CONFIGS[config])[field], our_default(key, config)
    if mine is dataclasses.MISSING or mine == REQUIRED:
        return
    assert mine == theirs or (mine is None and theirs is None), f"{field}={theirs} in TRL, {key}={mine} here: the page must say so instead of 'same'"
