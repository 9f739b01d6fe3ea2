"""Prompts have the length asked for, and the list of EOS ids gives completions the mean length asked for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig

from scripts.bench.prepare import BATCHES, mean_length, sized_eos, uniform_eos, word_tokenizer
from scripts.bench.workloads import MEAN_SHARE, Workload


def test_mean_length() -> None:
    assert mean_length([[5, 6, 7], [7, 5, 5], [1, 1, 1]], {7}) == (3 + 1 + 3) / 3


def test_eos_ids_give_the_mean_length() -> None:
    draw = random.Random(0)
    first, second = ([[draw.randrange(500) for _ in range(100)] for _ in range(200)] for _ in range(2))
    chosen = sized_eos(first, 35.0, keep=1, forbidden=0)
    assert 1 in chosen and 0 not in chosen
    assert abs(mean_length(first, set(chosen)) - 35) < 2
    assert abs(mean_length(second, set(chosen)) - 35) < 6


@pytest.mark.parametrize(("vocabulary", "longest"), [(1024, 128), (150_000, 64)])
def test_eos_ids_where_all_tokens_are_alike(vocabulary: int, longest: int) -> None:
    draw = random.Random(1)
    chosen = uniform_eos(vocabulary, longest, MEAN_SHARE * longest, keep=1)
    assert 1 in chosen and 0 not in chosen and len(chosen) == len(set(chosen))
    completions = [[draw.randrange(vocabulary) for _ in range(longest)] for _ in range(2000)]
    assert abs(mean_length(completions, set(chosen)) / longest - MEAN_SHARE) < 0.03


def test_a_word_is_a_token() -> None:
    tokenizer = word_tokenizer(20)
    assert tokenizer("w2 w19 w7")["input_ids"] == [2, 19, 7]
    assert tokenizer.decode([2, 19, 7]).split() == ["w2", "w19", "w7"]
    assert len(tokenizer) == 20


def test_inputs(small: Workload, inputs: Path) -> None:
    about = json.loads((inputs / "about.json").read_text())
    prompts = [json.loads(line)["prompt"] for line in (inputs / "prompts.jsonl").read_text().splitlines()]
    assert about["prompt_tokens"] == [6, 6] and len(prompts) == len(set(prompts)) == BATCHES * small.prompts
    assert about["parameters"] - about["non_embedding"] == 2 * small.vocabulary * small.hidden
    settings = GenerationConfig.from_pretrained(inputs / "model")
    assert len(settings.eos_token_id) == about["eos_ids"] and AutoTokenizer.from_pretrained(inputs / "model").eos_token_id in settings.eos_token_id
    assert settings.temperature in (None, 1.0) and 0 < MEAN_SHARE < 1
