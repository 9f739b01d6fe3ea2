"""A generator without a model: it answers with the ids and log-probs of a JSON file.

Importing this registers it as generation=scripted. The file holds {"answers": [[answer, ...], ...]}: answers[task index][rollout
number], both taken modulo the lengths, so that what is answered depends on nothing but the request. An answer is {"ids": [..],
"logprobs": [..] (null, or null inside: NaN; missing: all -1.0), "finish": "eos" | "stop" | "length" (missing: "eos" if the last
id is an EOS id, else "length")}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlexp import registry
from rlexp.config.fields import REQUIRED, option
from rlexp.config.generation import GenerationConfig
from rlexp.generation.base import LocalGenerator, Policy
from rlexp.records.request import Request
from rlexp.records.turn import EOS, LENGTH, Turn


@dataclass
class ScriptedGenerationConfig(GenerationConfig):
    """Answers from a file (tests only)."""

    name: str = "scripted"
    path: str = option(REQUIRED, "JSON file with the answers")


class ScriptedGenerator(LocalGenerator):
    provides = frozenset()

    def __init__(self, config: ScriptedGenerationConfig, *, policies: Mapping[str, Policy]) -> None:
        super().__init__()
        self.policies = policies
        self.answers = json.loads(Path(config.path).read_text())["answers"]

    def check(self, request: Request) -> None:
        """Every prompt is answered."""

    def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
        return [self._turn(request) for request in requests]

    def _turn(self, request: Request) -> Turn:
        _, index, number = request.order[:3]
        of_task = self.answers[index % len(self.answers)]
        answer = of_task[number % len(of_task)]
        ids = np.array(answer["ids"][: request.max_tokens], np.int64)
        given = answer.get("logprobs", [-1.0] * len(ids))
        logprobs = np.full(len(ids), np.nan, np.float32) if given is None else np.array(given[: len(ids)], np.float32)
        ended = len(ids) > 0 and int(ids[-1]) in self.policies[request.policy].eos_ids
        cut = len(answer["ids"]) > request.max_tokens
        finish = LENGTH if cut else answer.get("finish", EOS if ended else LENGTH)
        return Turn(np.asarray(request.ids, np.int64), ids, logprobs, finish, self.version)


registry.GENERATORS.register("scripted", ScriptedGenerationConfig, "scripted:ScriptedGenerator")
