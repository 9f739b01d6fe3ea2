"""Columns scored once per batch, without gradient, before the first step: old, reference, values, entropy."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from rlexp.batching.terms import Terms
from rlexp.distributed.collectives import Collectives
from rlexp.models.network import RowTensors, row_tensors
from rlexp.training.networks import Trainable
from rlexp.training.plan import Step

SOURCES = {"old": ("self", "logp"), "entropy": ("self", "entropy"), "value": ("self", "value"), "reference": ("reference", "logp")}
"""name of a scored column -> (whose forward, which column of it)"""


def _score_row(trainable: Trainable, row: RowTensors, names: Collection[str]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for owner in sorted({SOURCES[name][0] for name in names}):
        columns = {name: SOURCES[name][1] for name in names if SOURCES[name][0] == owner}
        wanted = sorted(set(columns.values()) & trainable.network.provides)
        if not wanted or (owner != "self" and owner not in trainable.companions):
            continue
        if owner == "self":
            training = trainable.network.training
            with torch.no_grad():
                values = trainable.network.eval()(row, wanted)
            trainable.network.train(training)
        else:
            values = trainable.companions[owner].score(row, wanted)
        found.update({name: values[column].double().cpu().numpy() for name, column in columns.items() if column in values})
    return found


def score(
    steps: list[Step], terms: Terms, trainables: dict[str, Trainable], names: Collection[str], collectives: Collectives, moved: bool, every_row: bool = False
) -> None:
    """Fill terms.columns[name], float64 [L], equal on every rank, for all steps of a batch.

    moved: whether the optimizer has stepped since the batch was sampled; scoring then would not give the sampling policy's numbers
    and raises RuntimeError. every_row: forward fillers too, because each forward is an exchange between the ranks.
    """
    if not names:
        return
    if moved:
        raise RuntimeError("a batch cannot be scored after an optimizer step: its old log-probs are those before the first step")
    columns = {name: np.zeros(terms.count) for name in sorted(names)}
    for step in steps:
        for model, micro_batches in step.micro_batches.items():
            for micro_batch in micro_batches:
                if micro_batch.filler and not every_row:
                    continue
                row = row_tensors(micro_batch.row, terms, trainables[model].network.device)
                found = _score_row(trainables[model], row, names)
                if not micro_batch.filler:
                    for name, values in found.items():
                        columns[name][micro_batch.row.term_L] = values
    for name, values in columns.items():
        terms.columns[name] = collectives.sum_array(values)
