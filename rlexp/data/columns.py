"""From rows of a table to tasks: prompt, renamed columns, held-out part. Shared by data=files and data=hub."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from rlexp.config.data import TabularDataConfig
from rlexp.config.errors import UserError
from rlexp.data.checks import check_task
from rlexp.data.tasks import Task
from rlexp.records import keys

Row = dict[str, Any]


class Rows(Sequence[Task]):
    """Tasks made from rows when they are looked at, so that a large table stays where it is."""

    def __init__(self, source: Sequence[Row], indices: Sequence[int] | np.ndarray, convert: Callable[[Row], Task]) -> None:
        self._source = source
        self._indices = indices
        self._convert = convert

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Task | Rows:
        if isinstance(index, slice):
            return Rows(self._source, self._indices[index], self._convert)
        return self._convert(self._source[int(self._indices[index])])


class TaskStream:
    """Tasks made from a stream of rows, each checked as it is read. Can be iterated again and again."""

    def __init__(self, source: Iterable[Row], convert: Callable[[Row], Task]) -> None:
        self._source = source
        self._convert = convert

    def __iter__(self) -> Iterator[Task]:
        for index, row in enumerate(self._source):
            task = self._convert(row)
            check_task(task, f"training task {index}")
            yield task


class Converter:
    """Row -> task, as data.prompt_column, prompt_template, columns and conversational say."""

    def __init__(self, config: TabularDataConfig, present: Collection[str], source: str) -> None:
        """present: columns of the table; source: its name, for messages. Raises UserError naming every column that is not there."""
        self._config = config
        wanted = {f"data.columns={{{new}: {old}}}": old for new, old in config.columns.items()}
        if config.prompt_template is None:
            wanted[f"data.prompt_column={config.prompt_column}"] = config.prompt_column
        else:
            wanted |= {f"data.prompt_template asks for {{{name}}}": name for name in _places(config.prompt_template)}
        missing = [key for key, column in wanted.items() if column not in present]
        if missing:
            raise UserError(f"{'; '.join(missing)}: {source} has no such column (columns: {', '.join(sorted(present)) or 'none'})")

    def __call__(self, row: Row) -> Task:
        """The task. Renamed columns keep only their new name, and the column the prompt was taken from is called prompt."""
        config = self._config
        prompt = row.get(config.prompt_column) if config.prompt_template is None else self._filled(config.prompt_template, row)
        if isinstance(prompt, str) and config.conversational:
            prompt = [{"role": "user", "content": prompt}]
        elif isinstance(prompt, list):
            prompt = [_without_empty(message) for message in prompt]
        gone = set(config.columns.values()) | ({config.prompt_column} if config.prompt_template is None else set())
        task = {name: value for name, value in row.items() if name not in gone}
        return task | {new: row.get(old) for new, old in config.columns.items()} | {"prompt": prompt}

    def _filled(self, template: str, row: Row) -> str:
        try:
            return template.format_map(row)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise UserError(f"data.prompt_template={template!r} cannot be filled from the row {str(row)[:80]}: {error!r}") from error


def split_off(rows: int, config: TabularDataConfig, seed: int, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and to hold out, in the order of the table.

    held_out: how many rows to hold out, chosen by the seed (0: the held-out tasks come from elsewhere). data.size counts the
    training tasks.
    """
    if held_out and held_out >= rows:
        raise UserError(f"data.eval_size={held_out} leaves none of the {rows} tasks to train on: lower it, or name the held-out tasks by data.eval_path")
    out = np.sort(keys.generator(seed, "held_out").choice(rows, held_out, replace=False))
    return np.setdiff1d(np.arange(rows), out)[: config.size], out


def _places(template: str) -> list[str]:
    """Column names in a template like "Q: {question}"."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise UserError(f"data.prompt_template={template!r} cannot be read: {error} (a literal brace is written twice)") from error
    names = [re.split(r"[.\[]", field)[0] for field in fields]
    if "" in names or any(name.isdigit() for name in names):
        raise UserError(f"data.prompt_template={template!r}: each place needs the name of a column, e.g. {{question}}")
    return names


def _without_empty(message: Any) -> Any:
    """Tables give every message every key; those that are empty were not in the message."""
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if value is not None or key == "content"}
