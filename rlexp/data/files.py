"""`data=files`: jsonl, json, csv or parquet.

Text formats are read here and not by the `datasets` library: values keep the type they were written with (csv cells stay text,
so that "007" is not 7), an error names file and line, and nothing is cached elsewhere.
"""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet

from rlexp.config.data import FilesDataConfig, TabularDataConfig
from rlexp.config.errors import UserError
from rlexp.data.columns import Converter, Row, Rows, split_off
from rlexp.data.tasks import Task, TaskData, task_data

_CELL = 2**31 - 1
"""longest csv cell; Python's own limit of 128 KB is shorter than some prompts"""


def load(config: FilesDataConfig, *, seed: int) -> TaskData:
    """Tasks of data.path: a file, a folder (its files of known kind) or a glob; files in the order of their names.

    Held out are the tasks of data.eval_path (files that both name are not trained on), or data.eval_size rows chosen by the seed.
    """
    eval_files = _find(config.eval_path, "data.eval_path") if config.eval_path else []
    files = [file for file in _find(config.path, "data.path") if file not in eval_files]
    if not files:
        raise UserError(f"data.path={config.path} names only the files of data.eval_path={config.eval_path}: nothing is left to train on")
    rows = [row for file in files for row in read(file, "data.path")]
    if not rows:
        raise UserError(f"data.path={config.path} has no rows: give it tasks")
    convert = Converter(config, {column for row in rows for column in row}, config.path)
    if config.eval_path:
        train, _ = split_off(len(rows), config, seed, 0)
        return task_data(Rows(rows, train, convert), held_out_tasks(config))
    train, out = split_off(len(rows), config, seed, config.eval_size)
    return task_data(Rows(rows, train, convert), list(Rows(rows, out, convert)))


def held_out_tasks(config: TabularDataConfig, prepare: Callable[[Row], Row] = lambda row: row) -> list[Task]:
    """The first data.eval_size tasks of data.eval_path. prepare: what is done to a row before it becomes a task."""
    assert config.eval_path is not None
    rows = [row for file in _find(config.eval_path, "data.eval_path") for row in read(file, "data.eval_path")]
    convert = Converter(config, {column for row in rows for column in row}, config.eval_path)
    return [convert(prepare(row)) for row in rows[: config.eval_size]]


def read(file: Path, key: str) -> list[Row]:
    """The rows of one file, by its ending. Raises UserError naming key, file and line for what cannot be read."""
    try:
        return _READERS[file.suffix.lower()](file)
    except UnicodeDecodeError as error:
        raise UserError(f"{key}: {file} is not UTF-8 text ({error}): convert it") from error
    except OSError as error:
        raise UserError(f"{key}: {file} cannot be read: {error}") from error
    except UserError as error:
        raise UserError(f"{key}: {error}") from error


def _jsonl(file: Path) -> list[Row]:
    rows = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rows.append(_row(json.loads(line), f"{file}:{number}"))
            except json.JSONDecodeError as error:
                raise UserError(f"{file}:{number} is not JSON: {error.msg} at column {error.colno}") from error
    return rows


def _json(file: Path) -> list[Row]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno} is not JSON: {error.msg} at column {error.colno} (one object per line is called .jsonl)") from error
    if not isinstance(content, list):
        raise UserError(f"{file} must hold a list of objects, not {type(content).__name__} (one object per line is called .jsonl)")
    return [_row(item, f"{file}, item {number}") for number, item in enumerate(content)]


def _csv(file: Path) -> list[Row]:
    rows = []
    csv.field_size_limit(_CELL)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{file}:{reader.line_num} has not as many cells as the first line has names ({', '.join(reader.fieldnames or ())})")
                rows.append(dict(row))
        except csv.Error as error:
            raise UserError(f"{file}:{reader.line_num} is not csv: {error}") from error
    return rows


def _parquet(file: Path) -> list[Row]:
    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file} is not parquet: {error}") from error


def _row(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(f'{where} must be an object like {{"prompt": ...}}, not {type(value).__name__}')
    return value


def _find(path: str, key: str) -> list[Path]:
    """The files that a path, folder or glob names, sorted by name."""
    place = Path(path).expanduser()
    if place.is_file():
        found = [place]
    elif place.is_dir():
        found = sorted(file for file in place.iterdir() if file.is_file() and file.suffix.lower() in _READERS)
    else:
        found = sorted(Path(name) for name in glob.glob(str(place), recursive=True) if Path(name).is_file())
    if not found:
        kinds = f" with {', '.join(_READERS)} files" if place.is_dir() else ""
        raise UserError(f"{key}={path}: no such file, folder{kinds} or match of a pattern")
    unknown = [file for file in found if file.suffix.lower() not in _READERS]
    if unknown:
        raise UserError(f"{key}={path}: {unknown[0].name} is of unknown kind; use {', '.join(_READERS)}")
    return found


_READERS: dict[str, Callable[[Path], list[Row]]] = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
