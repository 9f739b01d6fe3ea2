"""The parts that case_plugin names."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table_model import table_model

from rlexp.generation.base import Policy
from rlexp.losses.clipped import clipped_term
from rlexp.losses.inputs import LossInputs, PolicyTerm
from rlexp.models.loaded import LoadedModel
from rlexp.records.request import Request
from rlexp.records.stats import MAX, MIN, Stat
from rlexp.records.turn import EOS, Turn


def load_table(config: Any, *, seed: int) -> LoadedModel:
    """The table model that a JSON file describes."""
    spec = json.loads(Path(config.path).read_text())
    return table_model(spec.pop("probabilities"), dtype=getattr(torch, config.dtype), **spec)


class EchoGenerator:
    """Each request is answered by itself, in an order that nothing decides: the pauses are random and not seeded."""

    provides: frozenset[str] = frozenset()

    def __init__(self, config: Any, *, policies: Mapping[str, Policy]) -> None:
        self.config, self.policies, self.version = config, policies, 0
        self.pauses = random.SystemRandom()

    def set_version(self, version: int) -> None:
        self.version = version

    async def sample(self, request: Request) -> Turn:
        await asyncio.sleep(self.pauses.uniform(0, self.config.pause))
        ids = np.array([*request.ids[-self.config.characters :], self.policies[request.policy].eos_ids[0]], np.int64)
        return Turn(np.asarray(request.ids, np.int64), ids, np.full(len(ids), -1.0, np.float32), EOS, self.version)


def probed(inputs: LossInputs, config: Any) -> PolicyTerm:
    """The clipped term with `ratio/min` and `ratio/max`; against the sampler: -ratio A, unclipped."""
    reference_L = inputs.sampler_logp_L if config.against == "sampler" else inputs.old_logp_L
    ratio_L = torch.exp(inputs.where_active(inputs.logp_L - reference_L))
    term = clipped_term(inputs, config)
    value_L = -ratio_L * inputs.where_active(inputs.advantage_L) if config.against == "sampler" else term.value_L
    seen_L = ratio_L.detach()[inputs.active_L]
    extremes = {"ratio/min": Stat(MIN, float(seen_L.min())), "ratio/max": Stat(MAX, float(seen_L.max()))} if len(seen_L) else {}
    return PolicyTerm(value_L, term.ratio_L, {**term.stats, **extremes})
