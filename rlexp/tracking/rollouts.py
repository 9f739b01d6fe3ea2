"""rollouts/step_000010.parquet: what the model wrote, token by token. The same rollouts give the same bytes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlexp.records.rollout import Rollout

FIXED = ("task", "group", "index", "agent", "prompt", "completion", "prompt_ids", "ids", "logprobs", "masks", "finish", "reward", "advantage", "version")
"""Columns every file has. Each reward adds `rewards/<name>`, each logged extra column its own name."""


def rollout_path(folder: Path, step: int, split: str = "train") -> Path:
    """Where the rollouts of a step lie: rollouts/step_000010.parquet, those of an evaluation in rollouts/eval_000010.parquet."""
    return folder / "rollouts" / f"{'step' if split == 'train' else split}_{step:06d}.parquet"


def write_rollouts(folder: Path, step: int, split: str, rollouts: Sequence[Rollout]) -> Path:
    """Write the rollouts of a step, one row each in the order given, and return the file's path.

    ids, logprobs and masks (trained or not) hold the sampled tokens of all turns end to end, prompt_ids the first turn's prompt; task is
    the dataset row as JSON. The bytes depend on the rollouts only. The file appears whole or not at all.
    """
    target = rollout_path(folder, step, split)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table_of(rollouts), temporary, compression="zstd")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def table_of(rollouts: Sequence[Rollout]) -> pa.Table:
    """The rollouts as a table: the fixed columns, rewards in the order of the first rollout, extra columns by name."""
    columns: dict[str, pa.Array] = {
        "task": _texts(json.dumps(rollout.task, ensure_ascii=False, default=str) for rollout in rollouts),
        "group": _texts("/".join(str(part) for part in rollout.group) for rollout in rollouts),
        "index": pa.array([rollout.index for rollout in rollouts], pa.int64()),
        "agent": _texts(rollout.agent for rollout in rollouts),
        "prompt": _texts(rollout.prompt_text for rollout in rollouts),
        "completion": _texts(rollout.completion_text for rollout in rollouts),
        "prompt_ids": _tokens([rollout.turns[0].prompt_ids if rollout.turns else [] for rollout in rollouts], pa.int64()),
        "ids": _tokens([_joined([turn.ids for turn in rollout.turns]) for rollout in rollouts], pa.int64()),
        "logprobs": _tokens([_joined([turn.logprobs for turn in rollout.turns]) for rollout in rollouts], pa.float32()),
        "masks": _tokens([_joined([_trained(turn) for turn in rollout.turns]) for rollout in rollouts], pa.bool_()),
        "finish": _texts(rollout.turns[-1].finish if rollout.turns else "" for rollout in rollouts),
        "reward": _numbers(rollout.reward for rollout in rollouts),
        "advantage": _numbers(rollout.advantage for rollout in rollouts),
        "version": pa.array([rollout.turns[0].version if rollout.turns else None for rollout in rollouts], pa.int64()),
    }
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.rewards):
        columns[f"rewards/{name}"] = _numbers(rollout.rewards.get(name) for rollout in rollouts)
    for name in sorted({name for rollout in rollouts for name in rollout.extra}):
        columns[f"extra/{name}" if name in columns else name] = _anything([rollout.extra.get(name) for rollout in rollouts])
    return pa.table(columns)


def _trained(turn: Any) -> np.ndarray:
    return np.ones(len(turn.ids), dtype=bool) if turn.trained is None else turn.trained


def _joined(parts: list[np.ndarray]) -> np.ndarray | list:
    return np.concatenate(parts) if parts else []


def _tokens(rows: list, kind: pa.DataType) -> pa.Array:
    return pa.array([np.asarray(row).tolist() for row in rows], pa.list_(kind))


def _texts(values: Any) -> pa.Array:
    # Decoded bytes may hold lone surrogates, which UTF-8 and so Parquet cannot.
    return pa.array([str(value).encode("utf-8", "replace").decode() for value in values], pa.string())


def _numbers(values: Any) -> pa.Array:
    return pa.array([None if value is None or math.isnan(value) else float(value) for value in values], pa.float64())


def _anything(values: list[Any]) -> pa.Array:
    """Numbers as numbers, everything else as text (JSON for what is not text): a column that rewards filled has no promised type."""
    filled = [value for value in values if value is not None]
    if filled and all(isinstance(value, (bool, np.bool_)) for value in filled):
        return pa.array([None if value is None else bool(value) for value in values], pa.bool_())
    if filled and all(isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) for value in filled):
        return _numbers(values)
    texts = [value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str) for value in values]
    return pa.array([None if text is None else text.encode("utf-8", "replace").decode() for text in texts], pa.string())
