"""The scripted generator that other tests build on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from local_generators import requests_of
from scripted import ScriptedGenerationConfig
from table_model import table_model

from rlexp import registry
from rlexp.records.turn import EOS, LENGTH, STOP


def test_answers_by_task_and_number(tmp_path: Path) -> None:
    answers = [[{"ids": [4, 5, 7]}, {"ids": [4, 5, 6], "logprobs": [-1.0, None, -2.0]}], [{"ids": [1], "finish": "stop", "logprobs": None}]]
    (tmp_path / "answers.json").write_text(json.dumps({"answers": answers}))
    config = ScriptedGenerationConfig(path=str(tmp_path / "answers.json"))
    generator = registry.GENERATORS.load("scripted")(config, policies={"policy": table_model([0.1] * 10, eos_ids=(7,))})
    turns = generator.sample_wave(requests_of([[1], [2]], 8, each=2)[::-1])[::-1]
    assert [turn.ids.tolist() for turn in turns] == [[4, 5, 7], [4, 5, 6], [1], [1]]
    assert [turn.finish for turn in turns] == [EOS, LENGTH, STOP, STOP]
    np.testing.assert_array_equal([*turns[1].logprobs, turns[2].logprobs[0]], [-1.0, np.nan, -2.0, np.nan])
    cut = generator.sample_wave(requests_of([[1]], 2))[0]
    assert (cut.ids.tolist(), cut.finish) == ([4, 5], LENGTH)
