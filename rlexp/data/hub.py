"""`data=hub`: whatever the `datasets` library loads, by hub name or from a local folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from rlexp.config.data import HubDataConfig
from rlexp.config.errors import UserError
from rlexp.data import files, hub_access
from rlexp.data.checks import Fingerprint, check_task, columns_of
from rlexp.data.columns import Converter, Row, Rows, TaskStream, split_off
from rlexp.data.tasks import Task, TaskData, first_tasks, task_data


def load(config: HubDataConfig, *, seed: int) -> TaskData:
    """Tasks of data.split; held out are those of data.eval_path, of data.eval_split, or data.eval_size tasks of data.split.

    Raises UserError, within 30 s, when the hub is needed and cannot be reached.
    """
    table = _open(config, config.split)
    return _stream(config, table) if config.streaming else _sized(config, table, seed)


def _sized(config: HubDataConfig, table: Any, seed: int) -> TaskData:
    if not len(table):
        raise UserError(f"data.path={config.path} has no rows in data.split={config.split}: choose another split")
    convert = _converter(config, table.column_names)
    elsewhere = _held_out_elsewhere(config)
    train, out = split_off(len(table), config, seed, config.eval_size if elsewhere is None else 0)
    held_out = list(Rows(table, out, convert)) if elsewhere is None else elsewhere
    return task_data(Rows(table, train, convert), held_out)


def _stream(config: HubDataConfig, table: Any) -> TaskData:
    """A stream has no end to hold tasks out from: its first data.eval_size tasks are held out when nothing else is named."""
    first = first_tasks(table, 1)
    if not first:
        raise UserError(f"data.path={config.path} has no rows in data.split={config.split}: choose another split")
    convert = _converter(config, table.column_names or list(first[0]))
    held_out = _held_out_elsewhere(config)
    if held_out is None:
        held_out = [convert(row) for row in table.take(config.eval_size)]
        table = table.skip(config.eval_size)
    if config.size is not None:
        table = table.take(config.size)
    train = TaskStream(table, convert)
    fingerprint = Fingerprint()
    for part in (config.path, config.config, config.split, config.data_files, first):
        fingerprint.add(part)
    for index, task in enumerate(held_out):
        check_task(task, f"held-out task {index}")
        fingerprint.add(task)
    return TaskData(train, held_out, fingerprint.hexdigest(), columns_of([convert(first[0])]), config.shuffle_buffer)


def _held_out_elsewhere(config: HubDataConfig) -> list[Task] | None:
    """The first data.eval_size tasks of data.eval_path or data.eval_split; None when neither is set."""
    if config.eval_path:
        return files.held_out_tasks(config, _prepare(config))
    if config.eval_split is None:
        return None
    if config.eval_size == 0:
        return []
    table = _open(config, config.eval_split)
    rows = first_tasks(table, config.eval_size)
    convert = _converter(config, list(rows[0]) if rows else table.column_names)
    return [convert(row) for row in rows]


def _converter(config: HubDataConfig, present: Collection[str]) -> Callable[[Row], Task]:
    if config.answer_pattern is not None and config.answer_column not in present:
        raise UserError(f"data.answer_column={config.answer_column}: {config.path} has no such column (columns: {', '.join(sorted(present))})")
    convert, prepare = Converter(config, present, config.path), _prepare(config)
    return lambda row: convert(prepare(row))


def _prepare(config: HubDataConfig) -> Callable[[Row], Row]:
    """Cut the answer out of its column by data.answer_pattern."""
    if config.answer_pattern is None:
        return lambda row: row
    try:
        pattern = re.compile(config.answer_pattern)
    except re.error as error:
        raise UserError(f"data.answer_pattern={config.answer_pattern!r} is no regular expression: {error}") from error
    if not pattern.groups:
        raise UserError(f"data.answer_pattern={config.answer_pattern!r} needs a group in round brackets: the answer")

    def cut(row: Row) -> Row:
        text = str(row.get(config.answer_column))
        found = pattern.search(text)
        if found is None:
            raise UserError(f"data.answer_pattern={config.answer_pattern!r} finds nothing in {config.answer_column}={text[-80:]!r}")
        return {**row, config.answer_column: found.group(1).strip()}

    return cut


def _open(config: HubDataConfig, split: str) -> Any:
    """The table or stream of one split."""
    folder = Path(config.path).expanduser()
    path = str(folder) if folder.exists() else config.path
    options = {"name": config.config, "split": split, "data_files": config.data_files or None, "streaming": config.streaming}
    return hub_access.load_dataset(path, local=folder.exists(), **options)
